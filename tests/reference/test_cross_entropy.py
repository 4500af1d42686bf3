from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.bf16 import bf16_from_float32
from nf4tui.engine import IGNORE_INDEX
from nf4tui.models.weights import DenseTensor
from nf4tui.reference import cross_entropy
from nf4tui.reference.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    head_logits,
    logits_gradient,
)

V, D, N = 1031, 12, 9
TARGETS = np.array([0, IGNORE_INDEX, 1030, 5, IGNORE_INDEX, 257, 256, 511, 1030])


def _inputs() -> tuple[np.ndarray, DenseTensor]:
    random = np.random.default_rng(0)
    return random.standard_normal((N, D)), DenseTensor(random.standard_normal((V, D)).astype(np.float32))


def _naive(h: np.ndarray, head: DenseTensor) -> np.ndarray:
    logits = h @ head.data.astype(np.float64).T
    kept = TARGETS != IGNORE_INDEX
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(N), np.where(kept, TARGETS, 0)]
    return np.where(kept, losses, 0)


@pytest.mark.parametrize("values", [1, 12 * 300, 2**24])
def test_chunks_of_the_vocabulary_change_nothing(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_LOGITS", values)
    h, head = _inputs()
    losses, lse = cross_entropy_forward(h, head, TARGETS)
    np.testing.assert_allclose(losses, _naive(h, head), rtol=1e-12)
    logits = h @ head.data.astype(np.float64).T
    np.testing.assert_allclose(head_logits(h, head), logits, rtol=1e-12)
    kept = TARGETS != IGNORE_INDEX
    d = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    d[np.arange(N), np.where(kept, TARGETS, 0)] -= 1
    d[~kept] = 0
    np.testing.assert_allclose(logits_gradient(h, head, TARGETS, lse, 5.0), d / 5, atol=1e-14)
    dh = cross_entropy_backward(h, head, TARGETS, lse, 5.0)
    np.testing.assert_allclose(dh, d / 5 @ head.data.astype(np.float64), atol=1e-13)
    assert (lse[~kept] == 0).all() and (dh[~kept] == 0).all()


def test_the_backward_is_the_derivative(check_gradient: Callable[..., None]) -> None:
    h, head = _inputs()
    _, lse = cross_entropy_forward(h, head, TARGETS)
    dh = cross_entropy_backward(h, head, TARGETS, lse, 7.0)
    check_gradient(lambda z: float(cross_entropy_forward(z, head, TARGETS)[0].sum()) / 7, [h], [dh])


def test_logits_of_a_thousand_stay_finite() -> None:
    h, head = _inputs()
    large = (h * 400).astype(np.float32)
    losses, lse = cross_entropy_forward(large, head, TARGETS)
    dh = cross_entropy_backward(large, head, TARGETS, lse, 1.0)
    assert np.isfinite(losses).all() and np.isfinite(dh).all() and losses.max() > 500


def test_a_bfloat16_head_is_widened_by_rows() -> None:
    h, head = _inputs()
    stored = DenseTensor(bf16_from_float32(head.data))
    widened = DenseTensor(stored.float32())
    np.testing.assert_array_equal(head_logits(h, stored), head_logits(h, widened))


def test_nothing_supervised_costs_and_gives_nothing() -> None:
    h, head = _inputs()
    ignored = np.full(N, IGNORE_INDEX)
    losses, lse = cross_entropy_forward(h, head, ignored)
    assert losses.sum() == 0 and (cross_entropy_backward(h, head, ignored, lse, 1.0) == 0).all()


def test_a_nan_row_gives_a_nan_loss_and_leaves_the_others() -> None:
    h, head = _inputs()
    h[2, 0] = np.nan
    losses, _ = cross_entropy_forward(h, head, TARGETS)
    assert np.isnan(losses[2]) and np.isfinite(np.delete(losses, 2)).all()
