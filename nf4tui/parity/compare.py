"""The one comparator: relL2(x, y) = ||x - y|| / ||y||, and a limit that NaN fails."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rel_l2(x: ArrayLike, y: ArrayLike) -> float:
    """Relative L2 distance of x from the reference y, in float64. A zero reference is matched only by
    zeros (0), else infinity; NaN anywhere gives NaN. ValueError if the shapes differ."""
    a: NDArray[Any] = np.asarray(x, dtype=np.float64)
    b: NDArray[Any] = np.asarray(y, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    distance, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if size == 0:
        return 0.0 if distance == 0 else distance * float("inf")
    return distance / size


@dataclass(frozen=True, slots=True)
class Comparison:
    """An error against its limit. `ok` is written so that NaN fails."""

    rel_l2: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.rel_l2 <= self.limit
