"""Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), vectorised.

A counter-based generator: four 32-bit words are a pure function of a 128-bit counter and a 64-bit key.
Nothing holds a state, so nothing needs saving for a resume, and a GPU thread computes its own number.

    one round: (hi0, lo0) = c0 * M0, (hi1, lo1) = c2 * M1
               c = (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0);   then k0 += W0, k1 += W1

How nf4tui fills them: key = the seed's two words; counter = (block of four elements, stream, step,
purpose << 28 | micro-batch), where stream is the CRC-32 of the tensor's name.
"""

import zlib
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = 0x9E3779B9
_W1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10
_MASK32 = 0xFFFFFFFF


class Purpose(IntEnum):
    """Keeps the streams of different uses apart. Values are part of the format: never reuse one."""

    DROPOUT = 0
    INITIALISE = 1


def philox4x32(counter: ArrayLike, key: tuple[int, int]) -> NDArray[np.uint32]:
    """counter [..., 4] of 32-bit words -> [..., 4] uint32."""
    words = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    c0, c1, c2, c3 = words
    k0, k1 = key
    for _ in range(_ROUNDS):
        # 32 x 32 -> 64 bits: uint64 holds the whole product, so high and low words are a shift and a mask.
        p0 = c0 * _M0
        p1 = c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0 = (k0 + _W0) & _MASK32
        k1 = (k1 + _W1) & _MASK32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def random_words(
    seed: int, purpose: Purpose, name: str, blocks: NDArray[Any], *, step: int = 0, micro_batch: int = 0
) -> NDArray[np.uint32]:
    """Four words for each block of four elements. blocks [...] of integers below 2**32 -> [..., 4].

    ValueError where a word would not fit: a wrapped counter would repeat numbers unseen."""
    if not 0 <= micro_batch < 1 << 28 or not 0 <= step <= _MASK32:
        raise ValueError(f"step {step} or micro-batch {micro_batch} does not fit the counter")
    if blocks.size and not 0 <= int(blocks.min()) <= int(blocks.max()) <= _MASK32:
        raise ValueError(f"tensor {name} has more elements than the counter can number")
    counter = np.empty((*blocks.shape, 4), dtype=np.uint64)
    counter[..., 0] = blocks
    counter[..., 1] = zlib.crc32(name.encode())
    counter[..., 2] = step
    counter[..., 3] = int(purpose) << 28 | micro_batch
    return philox4x32(counter, (seed & _MASK32, seed >> 32 & _MASK32))
