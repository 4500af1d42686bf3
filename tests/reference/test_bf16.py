import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.bf16 import bf16_from_float32, float32_from_bf16, round_to_bf16, widen

ALL_BITS = np.arange(2**16, dtype=np.uint16)


def test_every_bfloat16_survives_widening_and_rounding() -> None:
    values = float32_from_bf16(ALL_BITS)
    back = bf16_from_float32(values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(back[~nan], ALL_BITS[~nan])
    assert np.isnan(float32_from_bf16(back[nan])).all()


def test_a_tie_goes_to_the_even_neighbour() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000], dtype=np.uint32)
    expected = np.array([0x3F80, 0x3F82, 0xBF80, 0xBF82], dtype=np.uint16)
    np.testing.assert_array_equal(bf16_from_float32(bits.view(np.float32)), expected)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_takes_the_nearest(value: float) -> None:
    x = np.array([value], dtype=np.float32)
    upper = np.uint32(x.view(np.uint32)[0] >> 16)
    around = np.array([max(int(upper) - 1, 0), int(upper), int(upper) + 1], dtype=np.uint16)
    near = float32_from_bf16(around).astype(np.float64)
    near = near[np.isfinite(near)]
    rounded = float(round_to_bf16(x)[0])
    if np.isfinite(rounded):
        assert abs(rounded - value) == np.abs(near - value).min()


def test_overflow_becomes_infinity_and_nan_stays_nan() -> None:
    # 0x7F800001 and 0x7FFFFFFF are NaNs that the rounding carry alone would turn into infinity or zero.
    x = np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800001, 0x7FFFFFFF], dtype=np.uint32).view(np.float32)
    y = round_to_bf16(x)
    assert y[0] == np.inf and y[1] == -np.inf and np.isnan(y[2:]).all()


def test_a_float64_is_refused_since_it_would_be_rounded_twice() -> None:
    with pytest.raises(TypeError, match="float64"):
        bf16_from_float32(np.zeros(3))  # type: ignore[arg-type]


def test_checkpoint_values_widen_exactly() -> None:
    x = np.array([1.5, -0.25, 3.0], dtype=np.float32)
    for stored in (x, x.astype(np.float16), bf16_from_float32(x)):
        widened = widen(stored)
        assert widened.dtype == np.float32
        np.testing.assert_array_equal(widened, x)
