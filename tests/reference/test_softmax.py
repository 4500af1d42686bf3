from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.reference.softmax import softmax_backward, softmax_forward


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 77, 1025])
def test_a_row_of_any_length_is_normalised(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, length)) * 5
    expected = [[np.exp(value) / np.exp(row).sum() for value in row] for row in x]
    np.testing.assert_allclose(softmax_forward(x), expected, rtol=1e-12)


def test_large_values_and_masked_ones() -> None:
    x = np.array([[1000.0, 999.0, -np.inf], [-np.inf] * 3], dtype=np.float32)
    y = softmax_forward(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[0], [0.7310586, 0.2689414, 0], rtol=1e-6)
    assert (y[1] == 0).all()


def test_the_backward_is_the_derivative(check_gradient: Callable[..., None]) -> None:
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((3, 33)), random.standard_normal((3, 33))
    dx = softmax_backward(dy, softmax_forward(x))
    check_gradient(lambda z: float((softmax_forward(z) * dy).sum()), [x], [dx])
