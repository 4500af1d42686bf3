"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), NeoX split-half as Qwen2 pairs it.

Element i < d/2 pairs with i + d/2 and both turn by position * theta^(-2i/d):
    y1 = x1 cos - x2 sin,   y2 = x2 cos + x1 sin
Angles are made in float64: a float32 angle at position 30,000 is off by thousandths of a turn.
The backward is the inverse rotation.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


def rope_table(
    positions: NDArray[Any], head_dim: int, theta: float, dtype: DTypeLike, rnd: Rounding = EXACT
) -> tuple[Array, Array]:
    """positions [...] integers -> cos, sin [..., d/2] in `dtype`."""
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angle = positions[..., None].astype(np.float64) * frequency
    cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
    return rnd(cos, Point.ROPE_TABLE), rnd(sin, Point.ROPE_TABLE)


def rope_forward(x: Array, cos: Array, sin: Array, rnd: Rounding = EXACT) -> Array:
    """x [B, T, H, d], cos and sin [B, T, d/2] -> y [B, T, H, d]."""
    return rnd(_rotate(x, cos, sin), Point.ROPE)


def rope_backward(dy: Array, cos: Array, sin: Array, rnd: Rounding = EXACT) -> Array:
    """dy [B, T, H, d], cos and sin [B, T, d/2] -> dx [B, T, H, d]."""
    return rnd(_rotate(dy, cos, -sin), Point.ACTIVATION_GRAD)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    cos, sin = cos[..., None, :], sin[..., None, :]
    y = np.empty_like(x)
    np.multiply(x[..., :half], cos, out=y[..., :half])
    y[..., :half] -= x[..., half:] * sin
    np.multiply(x[..., half:], cos, out=y[..., half:])
    y[..., half:] += x[..., :half] * sin
    return y
