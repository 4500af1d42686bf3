"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) with torch.optim.AdamW's conventions.

    p <- p * (1 - lr * decay)
    m <- beta1 * m + (1 - beta1) * g;   v <- beta2 * v + (1 - beta2) * g^2
    p <- p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

Everything in the dtype of p, float32 in training; the scalars are formed in float64.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import Update

Array = NDArray[Any]


def adamw_update(p: Array, g: Array, m: Array, v: Array, t: int, update: Update) -> None:
    """Updates p, m and v in place; all four of one shape. t: number of this update, from 1."""
    kind = p.dtype.type
    p *= kind(1 - update.lr * update.weight_decay)
    m *= kind(update.beta1)
    m += kind(1 - update.beta1) * g
    v *= kind(update.beta2)
    v += kind(1 - update.beta2) * np.square(g)
    denominator = np.sqrt(v)
    denominator /= kind(math.sqrt(1 - update.beta2**t))
    denominator += kind(update.eps)
    np.divide(m, denominator, out=denominator)
    denominator *= kind(update.lr / (1 - update.beta1**t))
    p -= denominator
