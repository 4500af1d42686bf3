"""NF4 (QLoRA, Dettmers et al. 2023, arXiv 2305.14314, appendix E), bit for bit as bitsandbytes.

A matrix is flattened row by row and cut into blocks of 64 (the last may be shorter). A block stores its
largest magnitude (absmax, float32) and, for each value, the index of the nearest of 16 code values:

    code = #{ t in THRESHOLDS : x * (1 / absmax) > t },   value = CODE[code] * absmax

The product with the reciprocal, in float32, is bitsandbytes' arithmetic: a division differs in the last
bit and flips codes. The thresholds are its decision tree's: midpoints, the lower code on a tie. Two codes
share a byte, the first in the high nibble. A block of zeros has absmax 0 and the code of 0, and
dequantises to zeros.

Memory: both directions work through CHUNK values at a time, so temporaries stay below 4 MiB.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.bf16 import widen
from nf4tui.nf4_code import CODE, THRESHOLDS
from nf4tui.reference.rounding import EXACT, Point, Rounding

BLOCK = 64
CHUNK = 4096 * BLOCK

# One gather a byte instead of two: a byte selects a pair of code values, held as 8 bytes.
_PAIRS: NDArray[np.uint64] = (
    np.stack([CODE.repeat(16), np.tile(CODE, 16)], axis=-1).view(np.uint64).reshape(256)
)


def nf4_quantize(values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """values: any shape; float32, float16, or bfloat16 as uint16 bits.
    Returns packed [ceil(n / 2)] uint8 and absmax [ceil(n / 64)] float32."""
    flat = values.reshape(-1)
    packed = np.empty((flat.size + 1) // 2, dtype=np.uint8)
    absmax = np.empty(-(-flat.size // BLOCK), dtype=np.float32)
    for start in range(0, flat.size, CHUNK):
        codes, absmax[start // BLOCK : (start + CHUNK) // BLOCK] = _quantize_chunk(
            widen(flat[start : start + CHUNK])
        )
        packed[start // 2 : (start + CHUNK) // 2] = codes[0::2] << 4 | codes[1::2]
    return packed, absmax


def nf4_dequantize(
    packed: NDArray[np.uint8],
    absmax: NDArray[np.float32],
    shape: tuple[int, ...],
    dtype: DTypeLike = np.float32,
    rnd: Rounding = EXACT,
) -> NDArray[Any]:
    """The matrix `shape` in `dtype`. The product is formed in float32, as bitsandbytes does, whatever
    the dtype: a float64 reference sees the very values that the model has."""
    size = math.prod(shape)
    if packed.size != (size + 1) // 2 or absmax.size != -(-size // BLOCK):
        raise ValueError(f"{packed.size} bytes and {absmax.size} scales do not make a matrix {shape}")
    result = np.empty(size, dtype=dtype)
    for start in range(0, size, CHUNK):
        part = result[start : start + CHUNK]
        scales = absmax[start // BLOCK : (start + CHUNK) // BLOCK]
        values = _PAIRS[packed[start // 2 : (start + CHUNK) // 2]].view(np.float32)[: part.size]
        whole = part.size - part.size % BLOCK
        blocks = values[:whole].reshape(-1, BLOCK)
        blocks *= scales[: whole // BLOCK, None]
        values[whole:] *= scales[-1]
        part[:] = rnd(values, Point.WEIGHT)
    return result.reshape(shape)


def _quantize_chunk(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """x [n] -> codes [n, rounded up to even] uint8, absmax [ceil(n / 64)]. A missing last value counts
    as 0, which is code 7."""
    blocks = np.zeros((-(-x.size // BLOCK), BLOCK), dtype=np.float32)
    blocks.reshape(-1)[: x.size] = x
    absmax = np.abs(blocks).max(axis=1)
    # The reciprocal 0 leaves a zero block at 0, code 7, as bitsandbytes' CPU quantiser writes it.
    reciprocal = np.divide(np.float32(1), absmax, where=absmax > 0, out=np.zeros_like(absmax))
    with np.errstate(invalid="ignore", over="ignore"):
        blocks *= reciprocal[:, None]
    codes = np.zeros(blocks.shape, dtype=np.uint8)
    above = np.empty(blocks.shape, dtype=np.bool_)
    # Fifteen comparisons over a cache-sized chunk: several times faster than a binary search a value.
    for threshold in THRESHOLDS:
        codes += np.greater(blocks, threshold, out=above).view(np.uint8)
    return codes.reshape(-1)[: x.size + x.size % 2], absmax
