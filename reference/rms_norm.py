"""RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467): y = x * rstd * w, rstd = (mean(x^2) + eps)^-1/2.

The mean is over the last axis and eps stands inside the root, in the backward too:
    dx = rstd * (g - x * rstd^2 * mean(g * x)),  g = dy * w
w is frozen, so it has no gradient.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


def rms_norm_forward(x: Array, w: Array, eps: float, rnd: Rounding = EXACT) -> tuple[Array, Array]:
    """x [..., D], w [D] -> y [..., D], rstd [...]."""
    mean_square = np.einsum("...d,...d->...", x, x) / x.shape[-1]
    rstd = rnd(1 / np.sqrt(mean_square + x.dtype.type(eps)), Point.RSTD)
    y = x * rstd[..., None]
    y *= rnd(w, Point.NORM_WEIGHT)
    return rnd(y, Point.NORM), rstd


def rms_norm_backward(dy: Array, x: Array, w: Array, rstd: Array, rnd: Rounding = EXACT) -> Array:
    """dy, x [..., D], w [D], rstd [...] -> dx [..., D]."""
    g = dy * rnd(w, Point.NORM_WEIGHT)
    along = np.einsum("...d,...d->...", g, x)
    along *= np.square(rstd)
    along /= x.shape[-1]
    g -= x * along[..., None]
    g *= rstd[..., None]
    return rnd(g, Point.ACTIVATION_GRAD)
