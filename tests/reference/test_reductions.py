import math

import numpy as np

from nf4tui.reference.reductions import clip_coefficient, count_nonfinite, find_nonfinite, global_norm


def test_nonfinite_elements_are_counted_and_the_first_tensor_named() -> None:
    x = np.ones((3, 5), dtype=np.float32)
    x[1, 2], x[2, 0], x[0, 0] = np.nan, np.inf, -np.inf
    assert count_nonfinite(x) == 3
    assert find_nonfinite({"good": np.ones(2), "bad": x, "worse": np.full(4, np.nan)}) == (7, "bad")
    assert find_nonfinite({"good": np.ones(2)}) == (0, None)


def test_the_norm_is_over_all_tensors_and_summed_in_float64() -> None:
    assert global_norm([np.array([3.0]), np.array([[4.0]])]) == 5.0
    small = np.full(2**16, 1e-5, dtype=np.float32)
    expected = math.sqrt(1 + 2**16 * float(np.float32(1e-5)) ** 2)
    assert abs(global_norm([np.ones(1, np.float32), small]) / expected - 1) < 1e-14
    assert math.isnan(global_norm([np.array([np.nan])]))


def test_clipping_is_torchs() -> None:
    assert clip_coefficient(4.0, 1.0) == 1.0 / (4.0 + 1e-6)
    assert clip_coefficient(0.5, 1.0) == 1.0
    assert clip_coefficient(1e9, 0.0) == 1.0
