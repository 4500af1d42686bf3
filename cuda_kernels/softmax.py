"""Softmax over rows of any length: reference/softmax.py on the GPU.

A warp takes a row. Every lane takes part in every reduction, whatever the length: lanes beyond the end of a
row bring the neutral element. (A reduction over the lanes that have values only would leave the others' sums
undefined: an old fault of trainers like this one.)
"""

from numba import cuda, float32

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, Kernel
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import exp
from nf4tui.cuda_kernels.warp import warp_max, warp_sum

THREADS = 128
ROWS = THREADS // 32
LOWEST = -3.4e38


def _forward(y, x, rows, width):
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= rows:
        return
    start = row * width
    highest = float32(LOWEST)
    for i in range(lane, width, 32):
        highest = max(highest, x[start + i])
    highest = warp_max(highest)
    total = float32(0)
    for i in range(lane, width, 32):
        total += exp(x[start + i] - highest)
    total = warp_sum(total)
    for i in range(lane, width, 32):
        if total > float32(0):
            y[start + i] = exp(x[start + i] - highest) / total
        else:
            y[start + i] = float32(0)  # a row of minus infinities sees nothing


def _backward(dx, dy, y, rows, width):
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= rows:
        return
    start = row * width
    along = float32(0)
    for i in range(lane, width, 32):
        along += dy[start + i] * y[start + i]
    along = warp_sum(along)
    for i in range(lane, width, 32):
        dx[start + i] = y[start + i] * (dy[start + i] - along)


FORWARD = Kernel(_forward, (F32, F32, i32, i32), threads=THREADS)
BACKWARD = Kernel(_backward, (F32, F32, F32, i32, i32), threads=THREADS)


def softmax_forward(device: Device, y: DeviceArray, x: DeviceArray, rows: int, width: int) -> None:
    """y [rows, width] of x, float32."""
    FORWARD(device, (-(-rows // ROWS),), y, x, rows, width)


def softmax_backward(
    device: Device, dx: DeviceArray, dy: DeviceArray, y: DeviceArray, rows: int, width: int
) -> None:
    """dx [rows, width] from dy and the forward's y."""
    BACKWARD(device, (-(-rows // ROWS),), dx, dy, y, rows, width)
