"""RoPE: reference/rope.py on the GPU. The table is made in float64 on the host and stored in float32."""

from numba import cuda

from nf4tui.cuda_kernels.bf16 import load_bf16, store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32

THREADS = 256


def _rotate(y, x, cos, sin, positions, tokens, heads, half, leading, direction):
    place = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if place >= tokens * heads * half:
        return
    token, rest = place // (heads * half), place % (heads * half)
    head, i = rest // half, rest % half
    at = token * leading + head * 2 * half + i
    angle = positions[token] * half + i
    c, s = cos[angle], direction * sin[angle]
    first, second = load_bf16(x, at), load_bf16(x, at + half)
    store_bf16(y, at, first * c - second * s)
    store_bf16(y, at + half, second * c + first * s)


KERNEL = Kernel(_rotate, (U16, U16, F32, F32, I32, i32, i32, i32, i32, f32), threads=THREADS)


def _launch(
    device: Device,
    y: DeviceArray,
    x: DeviceArray,
    cos: DeviceArray,
    sin: DeviceArray,
    positions: DeviceArray,
    heads: int,
    head_dim: int,
    leading: int,
    direction: float,
) -> None:
    tokens, half = positions.size, head_dim // 2
    blocks = -(-tokens * heads * half // THREADS)
    KERNEL(device, (blocks,), y, x, cos, sin, positions, tokens, heads, half, leading, direction)


def rope_forward(
    device: Device,
    y: DeviceArray,
    x: DeviceArray,
    cos: DeviceArray,
    sin: DeviceArray,
    positions: DeviceArray,
    heads: int,
    head_dim: int,
    leading: int,
) -> None:
    """y = x turned, [N, heads * head_dim] each, rows `leading` apart; y may be x.
    cos, sin: [positions, head_dim / 2]. positions: [N]."""
    _launch(device, y, x, cos, sin, positions, heads, head_dim, leading, 1.0)


def rope_backward(
    device: Device,
    dx: DeviceArray,
    dy: DeviceArray,
    cos: DeviceArray,
    sin: DeviceArray,
    positions: DeviceArray,
    heads: int,
    head_dim: int,
    leading: int,
) -> None:
    """dx = dy turned back."""
    _launch(device, dx, dy, cos, sin, positions, heads, head_dim, leading, -1.0)
