import math

import numpy as np
import pytest

from nf4tui.parity.compare import Comparison, rel_l2


def test_it_is_the_distance_over_the_size_of_the_reference() -> None:
    assert rel_l2([3.0, 4.0], [0.0, 4.0]) == 0.75
    x = np.float32([1.0])
    assert rel_l2(x, x.astype(np.float64) + 1e-9) == pytest.approx(1e-9, rel=1e-6)


def test_a_zero_reference_is_matched_by_zeros_alone() -> None:
    assert rel_l2(np.zeros(3), np.zeros(3)) == 0
    assert rel_l2(np.full(3, 1e-30), np.zeros(3)) == math.inf


@pytest.mark.parametrize(("x", "y"), [([math.nan], [1.0]), ([1.0], [math.nan]), ([math.nan], [0.0])])
def test_nan_on_either_side_fails_every_limit(x: list[float], y: list[float]) -> None:
    assert math.isnan(rel_l2(x, y))
    assert not Comparison(rel_l2(x, y), math.inf).ok


def test_the_limit_itself_is_within() -> None:
    assert Comparison(0.5, 0.5).ok and not Comparison(0.5000001, 0.5).ok


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        rel_l2(np.zeros((2, 1)), np.zeros(2))
