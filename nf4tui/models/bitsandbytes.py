"""Projections as bitsandbytes stores them in a 4-bit checkpoint: NF4 plain or double-quantised.

Beside `W.weight` (uint8 [n / 2, 1]) stand `W.weight.absmax`, `.quant_map` and a JSON object as bytes,
`.quant_state.bitsandbytes__nf4`. With double quantisation absmax is uint8 and is rebuilt in float32 as
    absmax[i] = nested_quant_map[u8[i]] * nested_absmax[i // 256] + nested_offset
(bitsandbytes.functional.dequantize_blockwise, then the offset added), which is exact.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.errors import InputError
from nf4tui.models.weights import NF4_BLOCK, Nf4Tensor
from nf4tui.nf4_code import CODE
from nf4tui.quoting import quoted

STATE_SUFFIX = ".quant_state.bitsandbytes__nf4"
_PLAIN = ("", ".absmax", ".quant_map", STATE_SUFFIX)
_NESTED = (".nested_absmax", ".nested_quant_map")

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Reader = Callable[[str], NDArray[Any]]


def check_quantization_config(path: Path, config: object) -> None:
    """Refuses anything but bitsandbytes' NF4. `config`: config.json's quantization_config."""
    if not isinstance(config, dict):
        raise InputError(f"{path}: quantization_config is {quoted(config)}: must be an object")
    method = config.get("quant_method", "bitsandbytes")
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if method != "bitsandbytes" or not config.get("load_in_4bit", config.get("_load_in_4bit", False)):
        raise InputError(
            f"{path}: quantization_config: {quoted(method)} without load_in_4bit is not supported; "
            "use the original checkpoint, or one in bitsandbytes' NF4"
        )
    if kind != "nf4":
        raise InputError(
            f"{path}: quantization_config: bnb_4bit_quant_type is {quoted(kind)}; only 'nf4' is supported"
        )


def nf4_tensor_names(weight: str, present: Callable[[str], bool]) -> list[str]:
    """Names of the tensors that hold the NF4 matrix `weight` (`....q_proj.weight`)."""
    suffixes = _PLAIN + (_NESTED if present(weight + _NESTED[0]) else ())
    return [weight + suffix for suffix in suffixes]


def read_nf4_tensor(
    where: Path, weight: str, shape: tuple[int, int], read: Reader, present: Callable[[str], bool]
) -> Nf4Tensor:
    """The matrix `weight` of the given shape (out, in). `read` returns a tensor by name, `present` says
    whether there is one.
    Raises InputError naming the tensor and what contradicts NF4 with blocks of 64."""

    def refuse(suffix: str, why: str) -> InputError:
        return InputError(f"{where}: tensor {weight + suffix!r}: {why}")

    state = _quant_state(read(weight + STATE_SUFFIX), lambda why: refuse(STATE_SUFFIX, why))
    if state.get("quant_type") != "nf4":
        raise refuse(STATE_SUFFIX, f"quant_type is {quoted(state.get('quant_type'))}; only nf4 is supported")
    if state.get("blocksize") != NF4_BLOCK:
        raise refuse(
            STATE_SUFFIX, f"blocksize is {quoted(state.get('blocksize'))}; only {NF4_BLOCK} is supported"
        )
    if state.get("shape") != list(shape):
        raise refuse(
            STATE_SUFFIX, f"shape is {quoted(state.get('shape'))}; config.json implies {list(shape)}"
        )
    code = read(weight + ".quant_map")
    if code.dtype != np.float32 or not np.array_equal(code.reshape(-1), CODE):
        raise refuse(".quant_map", "is not the NF4 code table")
    size = math.prod(shape)
    packed, absmax = read(weight), read(weight + ".absmax").reshape(-1)
    if packed.dtype != np.uint8 or packed.size != -(-size // 2):
        raise refuse("", f"{packed.dtype} {list(packed.shape)}; uint8 of {-(-size // 2)} bytes is needed")
    if absmax.size != -(-size // NF4_BLOCK):
        raise refuse(".absmax", f"{absmax.size} values; {-(-size // NF4_BLOCK)} are needed")
    if "nested_blocksize" in state:
        absmax = _dequantize_absmax(weight, absmax, state, read, present, refuse)
    elif absmax.dtype != np.float32:
        raise refuse(".absmax", f"is {absmax.dtype}; float32 is needed without double quantisation")
    bad = int(np.count_nonzero(~np.isfinite(absmax)))
    if bad:
        raise refuse(".absmax", f"{bad} non-finite values; the checkpoint is damaged")
    return Nf4Tensor(packed.reshape(-1), absmax, shape)


def _quant_state(raw: NDArray[Any], refuse: Callable[[str], InputError]) -> dict[str, Any]:
    if raw.dtype != np.uint8:
        raise refuse(f"is {raw.dtype}; the bytes of a JSON object are needed")
    try:
        state = json.loads(raw.tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise refuse("is not JSON") from error
    if not isinstance(state, dict):
        raise refuse("is not a JSON object")
    return state


def _dequantize_absmax(
    weight: str,
    codes: NDArray[Any],
    state: dict[str, Any],
    read: Reader,
    present: Callable[[str], bool],
    refuse: Callable[[str, str], InputError],
) -> NDArray[np.float32]:
    block, offset = state["nested_blocksize"], state.get("nested_offset")
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise refuse(STATE_SUFFIX, f"nested_blocksize is {quoted(block)}; a positive whole number is needed")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not abs(offset) < _FLOAT32_MAX:
        raise refuse(STATE_SUFFIX, f"nested_offset is {quoted(offset)}; a finite number is needed")
    if not present(weight + _NESTED[0]):
        raise refuse(_NESTED[0], f"is missing, although {STATE_SUFFIX[1:]} says nested_blocksize")
    table = read(weight + ".nested_quant_map").reshape(-1)
    scales = read(weight + ".nested_absmax").reshape(-1)
    if codes.dtype != np.uint8:
        raise refuse(".absmax", f"is {codes.dtype}; uint8 is needed with double quantisation")
    if table.dtype != np.float32 or table.size != 256:
        raise refuse(".nested_quant_map", "must hold 256 float32 values")
    if scales.dtype != np.float32 or scales.size != -(-codes.size // block):
        raise refuse(".nested_absmax", f"must hold {-(-codes.size // block)} float32 values")
    # A block may be stated longer than the matrix: never repeat a scale further than there are codes.
    scale = np.repeat(scales, min(block, max(1, codes.size)))[: codes.size]
    with np.errstate(all="ignore"):  # what overflows is counted as non-finite by the caller
        absmax: NDArray[np.float32] = table[codes] * scale + np.float32(offset)
    return absmax
