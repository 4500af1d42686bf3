"""Row softmax: y_i = exp(x_i - max x) / sum_j exp(x_j - max x), for any row length.

Used by sampling and as the unfused oracle of attention. Sums are formed in float64: over a vocabulary of
152,000 a float32 sum loses the small probabilities. A row of only -inf has no softmax and gives zeros.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax_forward(x: Array) -> Array:
    """x [..., n] -> y [..., n], the dtype of x."""
    highest = x.max(axis=-1, keepdims=True)
    y = np.exp(x - np.where(np.isneginf(highest), 0, highest))
    total = y.sum(axis=-1, keepdims=True, dtype=np.float64)
    result: Array = np.divide(y, total, where=total > 0, out=np.zeros_like(y), casting="same_kind")
    return result


def softmax_backward(dy: Array, y: Array) -> Array:
    """dy, y [..., n] -> dx [..., n]:  dx = y * (dy - sum(dy * y))."""
    along = (dy * y).sum(axis=-1, keepdims=True, dtype=np.float64)
    result: Array = (y * (dy - along)).astype(y.dtype)
    return result
