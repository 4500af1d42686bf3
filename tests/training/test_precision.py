"""The precision probe finds what rounding does, and a NaN is its worst finding."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nf4tui.engine import Batch
from nf4tui.models.random_checkpoint import SHAPES
from nf4tui.parity.compare import rel_l2
from nf4tui.training.precision import MAX_TOKENS, PrecisionProbe, parameters, probe_batch


def batch_of(real: int, width: int) -> Batch:
    ids = np.arange(2 * width, dtype=np.int32).reshape(2, width)
    documents = np.where(np.arange(width) < real, 0, -1).astype(np.int32)[None].repeat(2, 0)
    return Batch(ids, np.full_like(ids, -100), np.arange(width, dtype=np.int32)[None].repeat(2, 0), documents)


@pytest.mark.parametrize(("real", "width", "expected"), [(300, 320, MAX_TOKENS), (70, 96, 70), (2, 64, 2)])
def test_the_probe_is_the_first_rows_first_tokens_all_supervised(
    real: int, width: int, expected: int
) -> None:
    probe = probe_batch(batch_of(real, width))
    assert probe.input_ids.shape == (1, expected)
    assert probe.supervised_tokens == expected - 1


def test_relative_error_is_the_l2_norm_of_the_difference_over_that_of_the_exact() -> None:
    exact = np.array([3.0, 4.0])
    assert rel_l2(np.array([3.0, 4.5]), exact) == pytest.approx(0.1)
    assert rel_l2(np.zeros(2), np.zeros(2)) == 0.0
    assert rel_l2(np.ones(2), np.zeros(2)) == math.inf
    assert math.isnan(rel_l2(np.array([math.nan, 4.0]), exact))


def test_parameters_are_those_of_the_published_shapes() -> None:
    assert parameters(SHAPES["0.5b"]) == pytest.approx(0.494e9, rel=1e-3)
    assert parameters(SHAPES["7b"]) == pytest.approx(7.615e9, rel=1e-3)


class Taps:
    """An engine that has only taps to show."""

    def __init__(self, taps: dict[str, NDArray[Any]]) -> None:
        self.taps = taps

    def adapters(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_adapters(self, tensors: dict[str, NDArray[Any]]) -> None:
        assert tensors == {}

    def capture(self, batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
        yield from self.taps.items()


def test_the_worst_tap_is_named_and_a_nan_is_worse_than_any_number() -> None:
    exact: Any = Taps({name: np.ones(4) for name in ("a", "b", "c", "logits")})
    engine: Any = Taps(
        {"a": np.ones(4), "b": np.full(4, 1.5), "c": np.full(4, 1.1), "logits": np.full(4, 1.25)}
    )
    event = PrecisionProbe(exact, batch_of(2, 4)).measure(engine, 7)
    assert (event.step, event.rel_l2) == (7, 0.25)
    assert (event.worst.tap, event.worst.rel_l2) == ("b", 0.5)
    engine.taps["c"] = np.array([1, 1, math.nan, 1])
    worst = PrecisionProbe(exact, batch_of(2, 4)).measure(engine, 8).worst
    assert worst.tap == "c" and math.isnan(worst.rel_l2)
