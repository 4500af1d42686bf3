"""Charts as text: what a curve, a gap, a tick and a mark look like, and that no value can break them."""

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nf4tui.dashboard import braille
from nf4tui.dashboard.axis import axis_over, labels, round_steps
from nf4tui.dashboard.chart import BELOW, GAP, POINT, RESUMED, Curve, Ink, draw

FALLING = """\
4 ┤⣆┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈
  │⠸⡄
  │ ⢳⡀
2 ┤┈┈⠹⡄┈┈┈┈┈┈┈┈┈┈┈┈┈
  │   ⠹⣄
  │    ⠈⠓⠦⣄
0 ┤┈┈┈┈┈┈┈⠈⠉⠙⠒⠒⠲⠤⠤⠤⠤
  └┬───┬─────┬─────┬
   1   5    10    15"""

WITH_A_GAP = """\
1.5 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈
    │
    │
1.0 ┤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀┈┈┈┈┈┈┈┈┈⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
    │
    │
    │
0.5 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈
    └┬───────┬────xxxxxxxxx────┬───────┬
     1      20       40       60      80"""


def steps(count: int) -> np.ndarray:
    return np.arange(1.0, count + 1)


def rows(values: object, size: tuple[int, int] = (40, 10), **options: object) -> list[str]:
    array = np.asarray(values, np.float64)
    return draw(
        [Curve(steps(len(array)), array)], size, log=bool(options.pop("log", False)), **options
    ).text()


def text(chart: list[str]) -> str:
    return "\n".join(row.rstrip() for row in chart)


def test_a_falling_curve_is_drawn_with_its_axes() -> None:
    values = 4.2 * np.exp(-(steps(15) - 1) / 3)
    assert text(rows(values, (20, 9))) == FALLING


def test_a_gap_is_left_open_and_marked_below() -> None:
    values = np.ones(80)
    values[30:50] = np.nan
    assert text(rows(values)) == WITH_A_GAP.replace("x", GAP)


def test_a_single_value_between_gaps_is_still_a_dot() -> None:
    lone = np.full(41, np.nan)
    lone[20] = 1.0
    drawn = draw([Curve(steps(41), lone)], (40, 10), log=False)
    dots = [character for character in "".join(drawn.text()) if braille.BLANK < ord(character) < 0x2900]
    assert len(dots) == 1


def test_a_spike_of_one_step_among_many_is_not_lost() -> None:
    values = np.ones(10_000)
    values[5_000] = 9.0
    column = [row[21] for row in rows(values, (40, 12))[:-2]]
    assert all(braille.BLANK < ord(character) < 0x2900 for character in column)


def test_values_that_are_not_positive_are_marked_below_a_logarithmic_axis() -> None:
    assert BELOW in rows([1, 10, 0, 100, -5, 1000], log=True)[-2]
    assert BELOW not in rows([1, 10, 0, 100, -5, 1000])[-2]


def test_steps_of_other_series_and_resumes_are_marked() -> None:
    row = rows(np.ones(40), gaps=np.array([20.0]), resumes=[10])[-2]
    assert row.index(RESUMED) < row.index(GAP)


def test_a_gap_is_marked_over_a_resume_at_the_same_place() -> None:
    assert GAP in rows(np.ones(40), gaps=np.array([10.0]), resumes=[10])[-2]


def test_the_points_of_a_sparse_curve_are_marked_and_those_of_a_dense_one_are_not() -> None:
    def points(count: int) -> int:
        curve = Curve(steps(count), steps(count), points=True)
        return "".join(draw([curve], (40, 12), log=False).text()).count(POINT)

    assert points(5) == 5
    assert points(30) == 0


def test_where_two_curves_meet_the_dots_of_both_are_there() -> None:
    up, down = Curve(steps(30), steps(30)), Curve(steps(30), steps(30)[::-1])
    both = draw([up, down], (40, 12), log=False)
    alone = draw([up], (40, 12), log=False)
    codes, single = both.characters[:10, 4:], alone.characters[:10, 4:]
    drawn = alone.inks[:10, 4:] == Ink.CURVE
    assert (codes[drawn] & single[drawn] == single[drawn]).all()
    assert set(np.unique(both.inks)) >= {Ink.CURVE, Ink.CURVE + 1}


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1e30, 1.0],
        [np.inf, -np.inf, 1.0, 2.0],
        [np.nan] * 5,
        [np.inf] * 5,
        [1.7e308, -1.7e308],
        [5e-324, 0.0],
        [0.0, 0.0],
        [-3.0, -3.0],
        [1e30] * 4,
        [7.0],
        [np.nan],
        [],
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_no_value_breaks_a_chart(values: list[float], log: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart = rows(values, log=log)
    assert len(chart) == 10 and all(len(row) == 40 for row in chart)
    if any(not np.isfinite(value) for value in values) and len(values) > 1:
        assert GAP in chart[-2]


@given(
    st.lists(st.floats(width=64), max_size=60),
    st.tuples(st.integers(0, 60), st.integers(0, 20)),
    st.booleans(),
)
@settings(deadline=None)
def test_any_values_at_any_size_give_a_chart_of_that_size(
    values: list[float], size: tuple[int, int], log: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart = rows(values, size, log=log)
    assert len(chart) == size[1] and all(len(row) == size[0] for row in chart)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.booleans())
def test_every_finite_value_lies_on_the_axis_and_larger_ones_never_lower(
    values: list[float], log: bool
) -> None:
    array = np.sort(np.array(values))
    places = axis_over([array], log=log).place(array)
    assert ((places >= 0) & (places <= 1)).all() and (np.diff(places) >= 0).all()


@given(st.floats(-1e4, 1e4), st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_are_round_numbers_in_the_range_and_neither_too_few_nor_too_many(
    spans: float, span: float, count: int
) -> None:
    low = spans * span
    ticks = round_steps(low, low + span, count)
    assert 2 <= len(ticks) <= 2 * count + 2
    assert all(low - span * 1e-6 <= tick <= low + span + span * 1e-6 for tick in ticks)


def test_tick_labels_have_the_digits_that_tell_them_apart() -> None:
    assert labels([0.0, 0.5, 1.0], log=False) == ["0.0", "0.5", "1.0"]
    assert labels([2.0, 4.0], log=False) == ["2", "4"]
    assert labels([0.0, 1e-4, 2e-4], log=False) == ["0", "1e-4", "2e-4"]
    assert labels([20000.0, 40000.0], log=False) == ["20k", "40k"]
    assert labels([0.0, 1e30], log=False) == ["0", "1e30"]
    assert labels([0.1, 1.0, 10.0, 1e16], log=True) == ["0.1", "1", "10", "1e16"]


def test_two_series_of_ten_thousand_points_never_stall_the_screen() -> None:
    # Ten times what it takes on an idle machine: this is to find a hang, not to measure.
    noise = np.random.default_rng(0)
    curves = [Curve(steps(10_000), noise.normal(size=10_000)) for _ in range(2)]
    curves[1].values[::2] = np.nan  # five thousand gaps
    seconds = []
    for _ in range(5):
        began = time.process_time()
        draw(curves, (160, 45), log=False)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.1
