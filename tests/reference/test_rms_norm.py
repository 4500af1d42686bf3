from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.reference.rms_norm import rms_norm_backward, rms_norm_forward

EPS = 1e-6


def _inputs(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((6, width))
    x[1] *= 1e-3  # here eps is as large as the mean square
    x[2, 3] = 300.0
    x[3] = 0
    return x, 1 + 0.3 * random.standard_normal(width), random.standard_normal((6, width))


@pytest.mark.parametrize("width", [7, 64, 128])
def test_each_row_is_divided_by_its_root_mean_square(width: int) -> None:
    x, w, _ = _inputs(width)
    y, rstd = rms_norm_forward(x, w, EPS)
    for row in range(len(x)):
        scale = 1 / np.sqrt(sum(value**2 for value in x[row]) / width + EPS)
        np.testing.assert_allclose(rstd[row], scale, rtol=1e-12)
        np.testing.assert_allclose(y[row], x[row] * scale * w, rtol=1e-12)
    assert (y[3] == 0).all()


def test_eps_shows_in_small_rows_forward_and_backward() -> None:
    x, w, dy = _inputs(64)
    y, rstd = rms_norm_forward(x, w, EPS)
    other, other_rstd = rms_norm_forward(x, w, 1e-5)
    assert np.abs(y[1] / other[1] - 1).min() > 0.5
    dx, other_dx = rms_norm_backward(dy, x, w, rstd), rms_norm_backward(dy, x, w, other_rstd)
    assert np.linalg.norm(dx[1] - other_dx[1]) > 0.5 * np.linalg.norm(dx[1])


@pytest.mark.parametrize("width", [7, 64])
def test_the_backward_is_the_derivative(width: int, check_gradient: Callable[..., None]) -> None:
    x, w, dy = _inputs(width)
    _, rstd = rms_norm_forward(x, w, EPS)
    # One row at a time: the small row's gradient is a thousand times the others'.
    for row in range(len(x)):
        part = np.s_[row : row + 1]
        scale = 1e-4 if row in (1, 3) else 1.0
        dx = rms_norm_backward(dy[part], x[part], w, rstd[part])

        def loss(z: np.ndarray, part: slice = part, scale: float = scale) -> float:
            return float((rms_norm_forward(z * scale, w, EPS)[0] * dy[part]).sum())

        check_gradient(loss, [x[part] / scale], [dx * scale])


def test_float32_sums_its_rows_in_float64() -> None:
    x = np.full((1, 4097), 1e-4, dtype=np.float32)
    x[0, 0] = 1.0
    w = np.ones(4097, dtype=np.float32)
    y, rstd = rms_norm_forward(x, w, EPS)
    exact = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + EPS)
    assert y.dtype == rstd.dtype == np.float32
    assert abs(float(rstd[0]) / exact - 1) <= 2**-24
