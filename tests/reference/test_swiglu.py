from collections.abc import Callable

import numpy as np

from nf4tui.reference.swiglu import swiglu_backward, swiglu_forward


def test_it_is_silu_of_the_gate_times_up() -> None:
    random = np.random.default_rng(0)
    gate, up = random.standard_normal((5, 33)) * 4, random.standard_normal((5, 33))
    np.testing.assert_allclose(swiglu_forward(gate, up), gate / (1 + np.exp(-gate)) * up, rtol=1e-13)
    # GELU would pass a loose check: it is far away at 2.
    assert abs(float(swiglu_forward(np.array([2.0]), np.array([1.0]))[0]) - 1.7615942) < 1e-6


def test_large_gates_overflow_to_their_limits_without_a_warning() -> None:
    gate = np.array([-2000.0, 2000.0], dtype=np.float32)
    up = np.array([3.0, 3.0], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert swiglu_forward(gate, up).tolist() == [0.0, 6000.0]
        dgate, dup = swiglu_backward(np.ones_like(gate), gate, up)
    assert dgate.tolist() == [0.0, 3.0] and dup.tolist() == [0.0, 2000.0]


def test_the_backward_is_the_derivative(check_gradient: Callable[..., None]) -> None:
    random = np.random.default_rng(0)
    gate, up, dy = (random.standard_normal((5, 33)) * scale for scale in (3, 1, 1))
    check_gradient(
        lambda g, u: float((swiglu_forward(g, u) * dy).sum()), [gate, up], swiglu_backward(dy, gate, up)
    )
