"""Greedy is the maximum; sampling follows the distribution, within top-k and top-p, by seed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.errors import InputError
from nf4tui.inference.sampling import Sampling, choose

LOGITS = np.log(np.array([0.1, 0.5, 0.05, 0.3, 0.05], np.float32))


def counts(draws: int = 4000, **settings: Any) -> list[int]:
    chosen = [choose(LOGITS, Sampling(seed=3, **settings), number) for number in range(draws)]
    return np.bincount(chosen, minlength=len(LOGITS)).tolist()


def test_temperature_0_takes_the_maximum_whatever_the_rest_says() -> None:
    assert choose(LOGITS, Sampling(top_p=0.1, top_k=3, seed=9), 5) == 1


def test_temperature_1_draws_from_the_softmax() -> None:
    share = np.array(counts(temperature=1.0)) / 4000
    # Five standard deviations of a share of 4000 draws are at most 0.04.
    np.testing.assert_allclose(share, np.exp(LOGITS), atol=0.04)


def test_a_low_temperature_sharpens() -> None:
    share = np.array(counts(temperature=0.5)) / 4000
    expected = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    np.testing.assert_allclose(share, expected, atol=0.04)


def test_top_k_keeps_the_k_most_likely() -> None:
    found = counts(temperature=1.0, top_k=2)
    assert [number > 0 for number in found] == [False, True, False, True, False]


def test_top_p_keeps_the_smallest_set_with_that_probability() -> None:
    assert [number > 0 for number in counts(temperature=1.0, top_p=0.75)] == [False, True, False, True, False]
    assert [number > 0 for number in counts(temperature=1.0, top_p=0.85)] == [True, True, False, True, False]
    assert [number > 0 for number in counts(temperature=1.0, top_p=1e-9)] == [
        False,
        True,
        False,
        False,
        False,
    ]


def test_a_choice_is_a_function_of_seed_and_place() -> None:
    hot = Sampling(temperature=1.0, seed=1)
    first = [choose(LOGITS, hot, number) for number in range(50)]
    assert first == [choose(LOGITS, hot, number) for number in range(50)]
    assert first != [choose(LOGITS, Sampling(temperature=1.0, seed=2), number) for number in range(50)]
    assert len(set(first)) > 1


@given(
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20),
    temperature=st.sampled_from([0.0, 1e-30, 0.7, 1e30]),
    top_p=st.floats(1e-6, 1),
    top_k=st.integers(0, 30),
)
def test_every_choice_is_a_token(logits: list[float], temperature: float, top_p: float, top_k: int) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    array = np.array(logits, np.float32)
    chosen = choose(array, sampling, 0)
    assert 0 <= chosen < len(logits)
    if temperature <= 1e-30 or top_k == 1:
        assert array[chosen] == array.max()


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"temperature": -1.0}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"top_p": 0.0}, "--top-p"),
        ({"top_p": 1.5}, "--top-p"),
        ({"top_k": -1}, "--top-k"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_settings_out_of_range_are_refused_by_flag(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(InputError, match=f"^{flag} "):
        Sampling(**settings).check()
