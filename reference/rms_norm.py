"""RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467): y = x * rstd * w, rstd = (mean(x^2) + eps)^-1/2.

The mean is over the last axis and eps stands inside the root, in the backward too:
    dx = rstd * (g - x * rstd^2 * mean(g * x)),  g = dy * w
w is frozen, so it has no gradient. Row means are formed in float64: their error is common to a whole row,
so it would not average out as the error of single elements does.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


def rms_norm_forward(x: Array, w: Array, eps: float, rnd: Rounding = EXACT) -> tuple[Array, Array]:
    """x [..., D], w [D] -> y [..., D], rstd [...]."""
    rstd = rnd((1 / np.sqrt(_row_mean(x, x) + eps)).astype(x.dtype, copy=False), Point.RSTD)
    y = x * rstd[..., None]
    y *= rnd(w, Point.NORM_WEIGHT)
    return rnd(y, Point.NORM), rstd


def rms_norm_backward(dy: Array, x: Array, w: Array, rstd: Array, rnd: Rounding = EXACT) -> Array:
    """dy, x [..., D], w [D], rstd [...] -> dx [..., D]."""
    g = dy * rnd(w, Point.NORM_WEIGHT)
    along = (_row_mean(g, x) * np.square(rstd)).astype(x.dtype, copy=False)
    g -= x * along[..., None]
    g *= rstd[..., None]
    return rnd(g, Point.ACTIVATION_GRAD)


def _row_mean(x: Array, y: Array) -> NDArray[np.float64]:
    """x, y [..., D] -> mean(x * y) [...]."""
    total: NDArray[np.float64] = np.einsum("...d,...d->...", x, y, dtype=np.float64)
    total /= x.shape[-1]
    return total
