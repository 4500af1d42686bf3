"""Reductions over whole tensors: non-finite counts, the global gradient norm, relL2.

Sums are formed in float64: a float32 sum over millions of squares loses the small ones, and these numbers
decide whether an update is applied and whether a gate is green.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def count_nonfinite(x: Array) -> int:
    """How many elements are NaN or infinite."""
    return int(x.size - np.count_nonzero(np.isfinite(x)))


def find_nonfinite(tensors: Mapping[str, Array]) -> tuple[int, str | None]:
    """The number of non-finite elements over all tensors, and the name of the first that holds one."""
    total, first = 0, None
    for name, tensor in tensors.items():
        count = count_nonfinite(tensor)
        total += count
        if count and first is None:
            first = name
    return total, first


def global_norm(tensors: Iterable[Array]) -> float:
    """sqrt of the sum of all squares (torch.nn.utils.clip_grad_norm_'s total norm)."""
    total = 0.0
    for tensor in tensors:
        wide = tensor.astype(np.float64, copy=False).reshape(-1)
        total += float(np.dot(wide, wide))
    return float(np.sqrt(total))


def clip_coefficient(norm: float, clip: float) -> float:
    """The factor on all gradients: min(1, clip / (norm + 1e-6)), as torch clips; 1 where clip is 0."""
    return min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0


def rel_l2(x: ArrayLike, y: ArrayLike) -> float:
    """||x - y|| / ||y||: the relative L2 distance of x from the reference y. A zero reference is matched
    only by zeros (0), else infinity; NaN anywhere gives NaN. ValueError if the shapes differ."""
    a: Array = np.asarray(x, dtype=np.float64)
    b: Array = np.asarray(y, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    distance, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if size == 0:
        return 0.0 if distance == 0 else distance * float("inf")
    return distance / size
