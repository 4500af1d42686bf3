"""SwiGLU: reference/swiglu.py on the GPU."""

from numba import cuda, float32

from nf4tui.cuda_kernels.bf16 import load_bf16, store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import U16, Kernel
from nf4tui.cuda_kernels.ptx import exp

THREADS = 256


def _forward(y, gate, up):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < y.size:
        g = load_bf16(gate, i)
        store_bf16(y, i, g / (float32(1) + exp(-g)) * load_bf16(up, i))


def _backward(dgate, dup, dy, gate, up):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < dy.size:
        g, d = load_bf16(gate, i), load_bf16(dy, i)
        sigmoid = float32(1) / (float32(1) + exp(-g))
        slope = sigmoid * (float32(1) + g * (float32(1) - sigmoid))
        store_bf16(dgate, i, d * load_bf16(up, i) * slope)
        store_bf16(dup, i, d * g * sigmoid)


FORWARD = Kernel(_forward, (U16, U16, U16), threads=THREADS)
BACKWARD = Kernel(_backward, (U16, U16, U16, U16, U16), threads=THREADS)


def swiglu_forward(device: Device, y: DeviceArray, gate: DeviceArray, up: DeviceArray) -> None:
    """y = silu(gate) * up, all of one size."""
    FORWARD(device, (-(-y.size // THREADS),), y, gate, up)


def swiglu_backward(
    device: Device,
    dgate: DeviceArray,
    dup: DeviceArray,
    dy: DeviceArray,
    gate: DeviceArray,
    up: DeviceArray,
) -> None:
    """dgate may be gate, and dup may be up."""
    BACKWARD(device, (-(-dy.size // THREADS),), dgate, dup, dy, gate, up)
