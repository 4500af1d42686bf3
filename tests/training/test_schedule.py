"""The learning rate is a pure function of the step, with the documented defaults."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.schedule import SCHEDULES, auto_lr, learning_rate, warmup_steps


@pytest.mark.parametrize(
    ("rank", "lr"),
    [(1, 2e-4), (16, 2e-4), (32, 2e-4), (64, 1e-4), (128, 5e-5), (256, 2.5e-5), (512, 1.25e-5)],
)
def test_auto_lr_has_its_documented_points(rank: int, lr: float) -> None:
    assert auto_lr(rank) == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize(("low", "high"), [(32, 64), (64, 128), (128, 256)])
def test_auto_lr_between_two_points_is_interpolated_in_log_log(low: int, high: int) -> None:
    middle = auto_lr(48 * low // 32)
    share = math.log2(48 / 32)
    assert math.log(middle) == pytest.approx(
        (1 - share) * math.log(auto_lr(low)) + share * math.log(auto_lr(high))
    )


def test_warmup_below_one_is_a_share_and_from_one_on_a_number_of_steps() -> None:
    assert warmup_steps(0.03, 300) == 9
    assert warmup_steps(0.03, 20) == 1
    assert warmup_steps(0.0, 20) == 0
    assert warmup_steps(1, 20) == 1
    assert warmup_steps(7, 20) == 7


def test_a_cosine_run_has_these_rates() -> None:
    rates = [learning_rate(step, 6, peak=1.0, schedule="cosine", warmup=2) for step in range(1, 7)]
    expected = [
        1 / 3,
        2 / 3,
        1.0,
        0.5 + 0.5 * math.cos(math.pi / 4),
        0.5,
        0.5 + 0.5 * math.cos(3 * math.pi / 4),
    ]
    assert rates == pytest.approx(expected)


def test_a_linear_run_has_these_rates() -> None:
    rates = [learning_rate(step, 5, peak=2.0, schedule="linear", warmup=1) for step in range(1, 6)]
    assert rates == pytest.approx([1.0, 2.0, 1.5, 1.0, 0.5])


def test_a_constant_run_stays_at_its_peak_after_warmup() -> None:
    rates = [learning_rate(step, 4, peak=2.0, schedule="constant", warmup=1) for step in range(1, 5)]
    assert rates == pytest.approx([1.0, 2.0, 2.0, 2.0])


@given(
    total=st.integers(1, 400),
    schedule=st.sampled_from(SCHEDULES),
    warmup=st.one_of(st.floats(0, 0.99), st.integers(1, 500).map(float)),
)
def test_every_step_has_a_positive_rate_that_rises_to_the_peak_and_never_rises_again(
    total: int, schedule: str, warmup: float
) -> None:
    rates = [
        learning_rate(step, total, peak=1.0, schedule=schedule, warmup=warmup) for step in range(1, total + 1)
    ]
    warm = min(warmup_steps(warmup, total), total)
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[:warm] == sorted(rates[:warm])
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    if warm < total:
        assert rates[warm] == 1.0
