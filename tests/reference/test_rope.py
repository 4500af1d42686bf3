from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.reference.rope import rope_backward, rope_forward, rope_table

THETA = 1e6


@pytest.mark.parametrize("width", [8, 64, 128])
def test_element_i_turns_with_element_i_plus_half(width: int) -> None:
    positions = np.array([[0, 1, 2, 0, 511]])
    x = np.random.default_rng(0).standard_normal((1, 5, 3, width))
    y = rope_forward(x, *rope_table(positions, width, THETA, np.float64))
    half = width // 2
    for t, position in enumerate(positions[0]):
        for i in range(half):
            turn = np.exp(1j * position * THETA ** (-2 * i / width))
            turned = (x[0, t, :, i] + 1j * x[0, t, :, i + half]) * turn
            np.testing.assert_allclose(y[0, t, :, i], turned.real, atol=1e-12)
            np.testing.assert_allclose(y[0, t, :, i + half], turned.imag, atol=1e-12)


def test_a_product_of_query_and_key_depends_on_their_distance_alone() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal(16), random.standard_normal(16)
    near = rope_table(np.array([[7, 3]]), 16, THETA, np.float64)
    far = rope_table(np.array([[30_007, 30_003]]), 16, THETA, np.float64)
    shifted = rope_table(np.array([[8, 3]]), 16, THETA, np.float64)
    pair = np.stack([q, k])[None, :, None]
    products = []
    for table in (near, far, shifted):
        turned = rope_forward(pair, *table)[0, :, 0]
        products.append(turned[0] @ turned[1])
    assert abs(products[0] - products[1]) < 1e-9
    assert abs(products[0] - products[2]) > 1e-2


def test_the_float32_table_is_right_at_the_largest_position() -> None:
    cos, sin = rope_table(np.array([32_767]), 64, 1e4, np.float32)
    angle = 32_767 * 1e4 ** (-np.arange(0, 64, 2) / 64)
    assert cos.dtype == np.float32
    np.testing.assert_allclose(cos[0], np.cos(angle), atol=6e-8)
    np.testing.assert_allclose(sin[0], np.sin(angle), atol=6e-8)


def test_the_backward_is_the_derivative(check_gradient: Callable[..., None]) -> None:
    random = np.random.default_rng(0)
    table = rope_table(np.array([[0, 5, 9]]), 10, THETA, np.float64)
    x, dy = random.standard_normal((1, 3, 2, 10)), random.standard_normal((1, 3, 2, 10))
    check_gradient(lambda z: float((rope_forward(z, *table) * dy).sum()), [x], [rope_backward(dy, *table)])
    np.testing.assert_allclose(rope_backward(rope_forward(x, *table), *table), x, atol=1e-14)
