"""Dropout on a LoRA input: y = x * mask, mask = 0 with probability p, else 1 / (1 - p).

The mask is a function of (seed, step, micro-batch, tensor, element) through Philox, the same for both
engines, so the backward rebuilds it and a resumed run repeats it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.reference.philox import Purpose, random_words


@dataclass(frozen=True, slots=True)
class DropoutKey:
    """What the masks of one forward pass are a function of, beside the tensor's name."""

    seed: int
    step: int
    micro_batch: int


def dropout_mask(
    key: DropoutKey, name: str, shape: tuple[int, ...], p: float, dtype: DTypeLike
) -> NDArray[Any]:
    """The mask of the tensor `name`, of `shape`, in `dtype`. An element is dropped if its word is below
    p * 2^32."""
    size = int(np.prod(shape))
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    words = random_words(
        key.seed, Purpose.DROPOUT, name, blocks, step=key.step, micro_batch=key.micro_batch
    ).reshape(-1)[:size]
    kept = words >= np.uint32(min(int(p * 2**32), 2**32 - 1))
    mask: NDArray[Any] = kept.astype(dtype)
    mask /= 1 - p
    return mask.reshape(shape)
