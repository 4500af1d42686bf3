from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from safetensors.numpy import load_file

from nf4tui.bf16 import bf16_from_float32, float32_from_bf16, round_to_bf16
from nf4tui.models.load import load_model
from nf4tui.models.qwen2 import module_name
from nf4tui.nf4_code import CODE, THRESHOLDS
from nf4tui.reference.nf4 import BLOCK, CHUNK, nf4_dequantize, nf4_quantize
from nf4tui.reference.rounding import BF16

matrices = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


def _codes(packed: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:size]


def _naive(values: NDArray[np.float32]) -> tuple[list[int], list[float]]:
    """Element by element, by the definition in nf4.py's head."""
    codes, scales = [], []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        absmax = np.abs(block).max()
        scales.append(float(absmax))
        reciprocal = np.float32(1) / absmax if absmax > 0 else np.float32(0)
        codes += [sum(bool(x * reciprocal > t) for t in THRESHOLDS) for x in block]
    return codes, scales


def test_the_bytes_are_those_of_bitsandbytes(golden: Path) -> None:
    weights, recorded = load_model(golden / "base"), load_file(golden / "golden.safetensors")
    compared = 0
    for layer, tensors in enumerate(weights.layers):
        for name, tensor in tensors.projections.items():
            module = f"nf4.{module_name(layer, name)}"
            np.testing.assert_array_equal(tensor.packed, recorded[f"{module}.packed"].reshape(-1))
            np.testing.assert_array_equal(tensor.absmax, recorded[f"{module}.absmax"])
            compared += 1
    assert compared == 7 * len(weights.layers) == sum(name.endswith(".packed") for name in recorded)


def test_the_thresholds_are_the_midpoints_of_the_code() -> None:
    middle = (CODE[1:].astype(np.float64) + CODE[:-1]) / 2
    np.testing.assert_allclose(THRESHOLDS, middle, atol=3e-8)
    assert (np.diff(CODE) > 0).all()


@given(matrices)
def test_every_length_is_quantised_as_element_by_element(values: NDArray[np.float32]) -> None:
    packed, absmax = nf4_quantize(values)
    codes, scales = _naive(values)
    assert packed.shape == ((len(values) + 1) // 2,) and absmax.tolist() == scales
    assert _codes(packed, len(values)).tolist() == codes


@given(matrices)
def test_a_value_is_wrong_by_at_most_half_a_gap_of_the_code(values: NDArray[np.float32]) -> None:
    packed, absmax = nf4_quantize(values)
    back = nf4_dequantize(packed, absmax, values.shape)
    gap = float(np.diff(CODE.astype(np.float64)).max())
    limit = np.repeat(absmax, BLOCK)[: len(values)] * (gap / 2 + 1e-6)
    assert (np.abs(back - values) <= limit).all()


@given(matrices)
def test_dequantised_values_quantise_to_the_same_bytes(values: NDArray[np.float32]) -> None:
    packed, absmax = nf4_quantize(values)
    again, scales = nf4_quantize(nf4_dequantize(packed, absmax, values.shape))
    # A block's largest value is a code of +-1, so its scale survives and with it every code.
    np.testing.assert_array_equal(scales, absmax)
    size = len(values) - len(values) % 2
    np.testing.assert_array_equal(_codes(again, size), _codes(packed, size))


def test_the_first_code_is_in_the_high_nibble() -> None:
    packed, absmax = nf4_quantize(np.array([1.0, -1.0, 0.0], dtype=np.float32))
    # The half byte that no value fills holds the code of 0.
    assert packed.tolist() == [0xF0, 0x77] and absmax.tolist() == [1.0]


def test_zero_blocks_give_zeros_beside_others() -> None:
    values = np.zeros(3 * BLOCK + 5, dtype=np.float32)
    values[BLOCK : 2 * BLOCK] = np.linspace(-3, 2, BLOCK)
    packed, absmax = nf4_quantize(values)
    assert absmax.tolist() == [0, 3, 0, 0]
    assert (packed[: BLOCK // 2] == 0x77).all()  # as bitsandbytes 0.50.2 writes it on the CPU
    back = nf4_dequantize(packed, absmax, values.shape)
    assert (back[:BLOCK] == 0).all() and (back[2 * BLOCK :] == 0).all()
    assert np.isfinite(back).all() and back[BLOCK] == -3


def test_a_tensor_larger_than_a_chunk_equals_its_parts() -> None:
    values = np.random.default_rng(0).standard_normal(CHUNK + BLOCK + 3, dtype=np.float32)
    packed, absmax = nf4_quantize(values)
    head, head_scales = nf4_quantize(values[:CHUNK])
    tail, tail_scales = nf4_quantize(values[CHUNK:])
    np.testing.assert_array_equal(packed, np.concatenate([head, tail]))
    np.testing.assert_array_equal(absmax, np.concatenate([head_scales, tail_scales]))
    whole = nf4_dequantize(packed, absmax, values.shape)
    np.testing.assert_array_equal(whole[CHUNK:], nf4_dequantize(tail, tail_scales, (BLOCK + 3,)))


@pytest.mark.parametrize("narrow", [bf16_from_float32, lambda x: x.astype(np.float16)])
def test_half_precision_input_is_widened_first(narrow: Any) -> None:
    values = np.random.default_rng(0).standard_normal((7, 33), dtype=np.float32)
    stored = narrow(values)
    wide = float32_from_bf16(stored) if stored.dtype == np.uint16 else stored.astype(np.float32)
    for mine, theirs in zip(nf4_quantize(stored), nf4_quantize(wide), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_float64_and_bf16_see_the_float32_product() -> None:
    values = np.random.default_rng(0).standard_normal((9, 31), dtype=np.float32)
    packed, absmax = nf4_quantize(values)
    single = nf4_dequantize(packed, absmax, values.shape)
    double = nf4_dequantize(packed, absmax, values.shape, np.float64)
    assert double.dtype == np.float64 and single.shape == double.shape == values.shape
    np.testing.assert_array_equal(single, double)
    half = nf4_dequantize(packed, absmax, values.shape, rnd=BF16)
    np.testing.assert_array_equal(half, round_to_bf16(single))
    assert (half != single).any()


def test_a_shape_that_does_not_fit_is_refused() -> None:
    packed, absmax = nf4_quantize(np.ones(64, dtype=np.float32))
    with pytest.raises(ValueError, match="do not make"):
        nf4_dequantize(packed, absmax, (65,))
