"""What LoRA needs beside matrix products: operands from the master weights, and sums of split products."""

from numba import cuda, float32

from nf4tui.cuda_kernels.bf16 import store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32

THREADS = 256


def _operand(out, master, columns, leading, scale):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < master.size:
        store_bf16(out, i // columns * leading + i % columns, master[i] * scale)


def _add_splits(out, parts, splits, scale):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < out.size:
        total = float32(0)
        for split in range(splits):
            total += parts[split * out.size + i]
        out[i] += total * scale


OPERAND = Kernel(_operand, (U16, F32, i32, i32, f32), threads=THREADS)
ADD_SPLITS = Kernel(_add_splits, (F32, F32, i32, f32), threads=THREADS)


def lora_operand(
    device: Device, out: DeviceArray, master: DeviceArray, columns: int, leading: int, scale: float
) -> None:
    """out = master * scale as bfloat16: [rows, columns], the rows of out `leading` values apart."""
    OPERAND(device, (-(-master.size // THREADS),), out, master, columns, leading, scale)


def add_splits(device: Device, out: DeviceArray, parts: DeviceArray, splits: int, scale: float) -> None:
    """out [n] += scale * (the sum of parts [splits, n], in order)."""
    ADD_SPLITS(device, (-(-out.size // THREADS),), out, parts, splits, scale)
