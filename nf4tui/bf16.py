"""bfloat16 in NumPy, which has no such type: the upper 16 bits of a float32, held as uint16.

Rounding is to nearest, ties to even, as the GPU's cvt.rn.bf16.f32: adding 0x7FFF plus the lowest kept
bit carries into the kept half exactly when the dropped half is above one half, or equal and odd.
NaN stays NaN (the carry would turn some NaNs into infinity); overflow rounds to infinity.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_QUIET_BIT = np.uint16(0x0040)


def bf16_from_float32(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bfloat16 bits nearest to x, same shape. TypeError unless x is float32: a float64 would be
    rounded twice."""
    if x.dtype != np.float32:
        raise TypeError(f"bfloat16 is rounded from float32, got {x.dtype}")
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    result = rounded.astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():
        upper = (bits >> np.uint32(16)).astype(np.uint16) | _QUIET_BIT
        result = np.where(nan, upper, result)
    return result.reshape(x.shape)


def float32_from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 values of bfloat16 bits, exact, same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x rounded to the nearest bfloat16, as float32."""
    return float32_from_bf16(bf16_from_float32(x))


def widen(values: NDArray[Any]) -> NDArray[np.float32]:
    """Checkpoint values as float32: bfloat16 bits (uint16), float16 or float32; exact in each case."""
    return float32_from_bf16(values) if values.dtype == np.uint16 else np.asarray(values, dtype=np.float32)
