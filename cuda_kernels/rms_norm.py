"""RMSNorm: reference/rms_norm.py on the GPU. A warp takes a row; sums are float32 in a fixed order."""

import math

from numba import cuda, float32

from nf4tui.cuda_kernels.bf16 import load_bf16, store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.warp import warp_sum

THREADS = 128
ROWS = THREADS // 32  # of a block


def _forward(y, rstd, x, w, rows, width, leading, eps):
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= rows:
        return
    start = row * leading
    total = float32(0)
    for i in range(lane, width, 32):
        value = load_bf16(x, start + i)
        total += value * value
    r = float32(1) / float32(math.sqrt(warp_sum(total) / float32(width) + eps))
    if lane == 0:
        rstd[row] = r
    for i in range(lane, width, 32):
        store_bf16(y, start + i, load_bf16(x, start + i) * r * w[i])


def _backward(dx, dy, x, w, rstd, residual, rows, width, leading):
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= rows:
        return
    start = row * leading
    total = float32(0)
    for i in range(lane, width, 32):
        total += load_bf16(dy, start + i) * w[i] * load_bf16(x, start + i)
    r = rstd[row]
    along = warp_sum(total) / float32(width) * r * r
    for i in range(lane, width, 32):
        g = load_bf16(dy, start + i) * w[i]
        value = r * (g - load_bf16(x, start + i) * along)
        if residual.size > 0:
            value += load_bf16(residual, start + i)
        store_bf16(dx, start + i, value)


FORWARD = Kernel(_forward, (U16, F32, U16, F32, i32, i32, i32, f32), threads=THREADS)
BACKWARD = Kernel(_backward, (U16, U16, U16, F32, F32, U16, i32, i32, i32), threads=THREADS)


def rms_norm_forward(
    device: Device,
    y: DeviceArray,
    rstd: DeviceArray,
    x: DeviceArray,
    w: DeviceArray,
    rows: int,
    width: int,
    leading: int,
    eps: float,
) -> None:
    """y [rows, width], rstd [rows] of x; rows are `leading` values apart."""
    FORWARD(device, (-(-rows // ROWS),), y, rstd, x, w, rows, width, leading, eps)


def rms_norm_backward(
    device: Device,
    dx: DeviceArray,
    dy: DeviceArray,
    x: DeviceArray,
    w: DeviceArray,
    rstd: DeviceArray,
    residual: DeviceArray | None,
    rows: int,
    width: int,
    leading: int,
) -> None:
    """dx [rows, width], the gradient through the norm plus `residual`, rounded once."""
    none = device.nothing(x.dtype) if residual is None else residual
    BACKWARD(device, (-(-rows // ROWS),), dx, dy, x, w, rstd, none, rows, width, leading)
