"""Double quantisation (QLoRA, arXiv 2305.14314, section 3) and the tensors of bitsandbytes' 4-bit layout.

NF4's float32 scales are quantised to 8 bits: the mean (offset) is taken off them, and blocks of 256 are divided
by their largest magnitude and replaced with the index of the nearest value of a fixed table. The table is
bitsandbytes' dynamic map (create_dynamic_map; Dettmers 2016, arXiv 1511.04561): per decade 10^-6 ... 10^0
and sign twice as many values as in the one before, midpoints of equal steps from 0.1 to 1, and 0 and 1.

Given the offset, every code is that of bitsandbytes' CUDA kernel: the nearest, of two equally near ones the even
one (its binary search ends at even indices, and leaves them only for a nearer neighbour). Its CPU kernel looks
codes up in a table with steps of 3e-5 and misses the nearest about once in a thousand. The offset itself is a
mean, whose last bit depends on the order of the sum.
"""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.models.bitsandbytes import STATE_SUFFIX
from nf4tui.models.safetensors_writer import TensorSpec
from nf4tui.models.weights import NF4_BLOCK, Nf4Tensor
from nf4tui.nf4_code import CODE

NESTED_BLOCK = 256
_DECADES = 7
QUANTIZATION_CONFIG = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}


def dynamic_map() -> NDArray[np.float32]:
    """The 256 values of bitsandbytes' signed dynamic map, ascending."""
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        steps = 2**decade + 1
        bounds = _linspace(steps)
        middles = (bounds[:-1] + bounds[1:]) / np.float32(2)
        scaled = np.float32(10.0 ** (decade - _DECADES + 1)) * middles
        values += [*scaled.tolist(), *(-scaled).tolist()]
    return np.sort(np.array(values, np.float32))


def _linspace(count: int) -> NDArray[np.float32]:
    """0.1 to 1, counted from the nearer end by float32 steps with one rounding each, as torch.linspace does
    (its multiply-add is fused; in float64 the product is exact)."""
    step = np.float64((np.float32(1) - np.float32(0.1)) / np.float32(count - 1))
    number = np.arange(count, dtype=np.float64)
    up = np.float64(np.float32(0.1)) + step * number
    down = 1 - step * (count - 1 - number)
    return np.where(number < count // 2, up, down).astype(np.float32)


def quantize_absmax(
    absmax: NDArray[np.float32], offset: np.float32 | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float32], np.float32]:
    """absmax [n] -> codes [n] uint8, scales [ceil(n / 256)] float32, offset (None: the mean)."""
    if offset is None:
        offset = np.float32(absmax.mean(dtype=np.float64))
    blocks = np.zeros((-(-absmax.size // NESTED_BLOCK), NESTED_BLOCK), np.float32)
    blocks.reshape(-1)[: absmax.size] = absmax - offset
    scales = np.abs(blocks).max(axis=1)
    reciprocal = np.divide(np.float32(1), scales, where=scales > 0, out=np.zeros_like(scales))
    table = dynamic_map()
    middles = (table[:-1] + table[1:]) / np.float32(2)
    values = (blocks * reciprocal[:, None]).reshape(-1)[: absmax.size]
    codes = np.searchsorted(middles, values)
    tied = middles[np.minimum(codes, len(middles) - 1)] == values
    codes += tied & (codes % 2 == 1)
    return codes.astype(np.uint8), scales, offset


def nf4_specs(weight: str, shape: tuple[int, int]) -> dict[str, TensorSpec]:
    """The tensors that hold the NF4 matrix `weight`, in the order in which nf4_tensors gives them. The
    length of the state, a JSON object, is fixed by padding it with blanks."""
    size = shape[0] * shape[1]
    blocks = -(-size // NF4_BLOCK)
    return {
        weight: TensorSpec("U8", (-(-size // 2), 1)),
        f"{weight}.absmax": TensorSpec("U8", (blocks,)),
        f"{weight}.nested_absmax": TensorSpec("F32", (-(-blocks // NESTED_BLOCK),)),
        f"{weight}.nested_quant_map": TensorSpec("F32", (256,)),
        f"{weight}.quant_map": TensorSpec("F32", (16,)),
        f"{weight}{STATE_SUFFIX}": TensorSpec("U8", (_state_size(shape),)),
    }


def nf4_tensors(tensor: Nf4Tensor, offset: np.float32 | None = None) -> list[NDArray[Any]]:
    """The arrays of nf4_specs."""
    codes, scales, offset = quantize_absmax(tensor.absmax, offset)
    state = _state(tensor.shape, float(offset)).ljust(_state_size(tensor.shape))
    return [tensor.packed, codes, scales, dynamic_map(), CODE, np.frombuffer(state.encode(), np.uint8)]


def _state(shape: tuple[int, int], offset: float) -> str:
    return json.dumps(
        {
            "quant_type": "nf4",
            "blocksize": NF4_BLOCK,
            "dtype": "bfloat16",
            "shape": list(shape),
            "nested_blocksize": NESTED_BLOCK,
            "nested_dtype": "float32",
            "nested_offset": offset,
        }
    )


def _state_size(shape: tuple[int, int]) -> int:
    return len(_state(shape, 0.0)) + 24  # a float's repr has at most 24 characters
