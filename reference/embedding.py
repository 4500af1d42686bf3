"""Token embedding: row lookup. The table is frozen, so there is no backward."""

from typing import Any

from numpy.typing import DTypeLike, NDArray

from nf4tui.models.weights import DenseTensor
from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


def embedding_forward(
    ids: NDArray[Any], table: DenseTensor, dtype: DTypeLike, rnd: Rounding = EXACT
) -> Array:
    """ids [B, T] below V, table [V, D] -> x [B, T, D] in `dtype`."""
    rows = table.float32(ids.reshape(-1)).astype(dtype, copy=False)
    return rnd(rows.reshape(*ids.shape, -1), Point.EMBEDDING)
