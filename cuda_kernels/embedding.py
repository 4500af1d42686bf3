"""Rows of the embedding table: reference/embedding.py on the GPU. Exact: bits are copied."""

from numba import cuda

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import int32 as i32

THREADS = 128


def _gather(x, table, ids, width, leading):
    token = cuda.blockIdx.x
    row = ids[token]
    for i in range(cuda.threadIdx.x, width, THREADS):
        x[token * leading + i] = table[row * leading + i]


KERNEL = Kernel(_gather, (U16, U16, I32, i32, i32), threads=THREADS)


def embedding_forward(
    device: Device, x: DeviceArray, table: DeviceArray, ids: DeviceArray, width: int, leading: int
) -> None:
    """x [N, width] = table[ids]; rows of both are `leading` values apart. ids [N]: within the table, which
    the host has checked."""
    KERNEL(device, (ids.size,), x, table, ids, width, leading)
