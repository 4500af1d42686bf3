import math

import numpy as np
import pytest

from nf4tui.engine import Update
from nf4tui.reference.adamw import adamw_update

UPDATE = Update(step=9, lr=3e-3, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1)


def test_three_updates_equal_the_formula_one_number_at_a_time() -> None:
    random = np.random.default_rng(0)
    p = random.standard_normal((4, 3))
    m, v = np.zeros_like(p), np.zeros_like(p)
    expected = p.copy().reshape(-1).tolist()
    moments = [(0.0, 0.0)] * len(expected)
    for t in (1, 2, 3):
        g = random.standard_normal(p.shape) * 10.0**-t
        adamw_update(p, g, m, v, t, UPDATE)
        for i, gi in enumerate(g.reshape(-1).tolist()):
            mi, vi = moments[i]
            mi, vi = 0.8 * mi + 0.2 * gi, 0.95 * vi + 0.05 * gi * gi
            moments[i] = mi, vi
            corrected = mi / (1 - 0.8**t) / (math.sqrt(vi / (1 - 0.95**t)) + 1e-3)
            expected[i] = expected[i] * (1 - 3e-3 * 0.1) - 3e-3 * corrected
        np.testing.assert_allclose(p.reshape(-1), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept_and_the_gradient_untouched(dtype: type) -> None:
    random = np.random.default_rng(0)
    p, g = (random.standard_normal(50).astype(dtype) for _ in range(2))
    m, v, given = np.zeros_like(p), np.zeros_like(p), g.copy()
    adamw_update(p, g, m, v, 1, UPDATE)
    assert p.dtype == m.dtype == v.dtype == dtype
    np.testing.assert_array_equal(g, given)


def test_decay_is_decoupled_from_the_gradient() -> None:
    p, zero = np.array([2.0]), np.zeros(1)
    adamw_update(p, zero, zero.copy(), zero.copy(), 1, UPDATE)
    assert p[0] == 2.0 * (1 - 3e-3 * 0.1)
