"""Dropout on a LoRA input: y = x * mask, mask = 0 with probability p, else 1 / (1 - p).

(Srivastava et al. 2014, in the inverted form: nothing changes at inference.)

The mask is a function of (seed, step, micro-batch, tensor, element) through Philox, the same for both
engines, so the backward rebuilds it and a resumed run repeats it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.philox import Purpose, random_words


@dataclass(frozen=True, slots=True)
class DropoutKey:
    """What the masks of one forward pass are a function of, beside the tensor's name."""

    seed: int
    step: int
    micro_batch: int


def dropout_mask(
    key: DropoutKey, name: str, places: NDArray[Any], width: int, p: float, dtype: DTypeLike
) -> NDArray[Any]:
    """The mask [n, width] in `dtype` of the input of projection `name`, for the tokens at `places` [n] of
    the micro-batch's flattened [B * T]. A row starts a block of four words of its own, so a token's mask
    does not depend on which other tokens are computed. An element is dropped if its word is below
    p * 2^32."""
    blocks_a_row = -(-width // 4)
    blocks = places[:, None] * blocks_a_row + np.arange(blocks_a_row)
    words = random_words(
        key.seed, Purpose.DROPOUT, name, blocks, step=key.step, micro_batch=key.micro_batch
    ).reshape(len(places), -1)[:, :width]
    mask: NDArray[Any] = (words >= np.uint32(min(int(p * 2**32), 2**32 - 1))).astype(dtype)
    mask /= 1 - p
    return mask
