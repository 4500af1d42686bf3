"""A line chart as a grid of characters, made from series and a size; knows no terminal and no colours.

3 ┤⡇                     value ticks on the left, faint lines across
  │⠱⡀
2 ┤┈⠱⡀┈┈┈◆┈┈┈┈┈┈┈┈┈┈┈    ◆: each point of a curve that has few
  │  ⠑⢄⣀⣀⣀    ⣀⣀⣀⣀⣀⣀
  └─────────xx──────┬    the event row: x not finite, ▾ below a logarithmic axis, ↻ resumed
  1                80    steps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nf4tui.dashboard import braille
from nf4tui.dashboard.axis import Axis, axis_over, labels, round_steps

MIN_PLOT = (10, 2)  # cells; less shows nothing
GAP, BELOW, RESUMED, POINT, GRID = "\N{MULTIPLICATION SIGN}▾↻◆┈"
_ROWS_A_TICK = 3
_CELLS_A_STEP_LABEL = 12

Floats = NDArray[np.float64]
Grid = NDArray[np.uint32]


class Ink(IntEnum):
    """What a cell shows, for who colours it. CURVE + i is the i-th curve."""

    NONE = 0
    GRID = 1
    AXIS = 2
    GAP = 3
    RESUMED = 4
    CURVE = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """steps: [n] increasing; values: [n], NaN and inf where not finite. points: mark each point if few."""

    steps: Floats
    values: Floats
    points: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """characters: [height, width] code points. inks: [height, width] Ink values."""

    characters: Grid
    inks: NDArray[np.uint8]

    def text(self) -> list[str]:
        """The rows without their inks."""
        return [row_text(row) for row in self.characters]


def row_text(row: Grid) -> str:
    """Code points [width] as text."""
    return row.astype("<u4").tobytes().decode("utf-32-le")


def draw(
    curves: Sequence[Curve],
    size: tuple[int, int],
    *,
    log: bool,
    gaps: Floats | None = None,
    resumes: Sequence[int] = (),
) -> Chart:
    """The chart in (width, height) cells; blank where there is nothing to show or no room.

    gaps: [n] steps to mark as not finite, beside those where a curve is not.
    """
    width, height = size
    chart = Chart(
        np.full((max(height, 0), max(width, 0)), ord(" "), np.uint32),
        np.zeros((max(height, 0), max(width, 0)), np.uint8),
    )
    curves = [curve for curve in curves if len(curve.steps)]
    if not curves:
        return chart
    axis = axis_over([curve.values for curve in curves], log=log)
    ticks = axis.ticks(max(2, (height - 2) // _ROWS_A_TICK))
    tick_labels = labels(ticks, log=log)
    gutter = max(map(len, tick_labels), default=1) + 1
    plot = (width - gutter - 1, height - 2)
    if plot[0] < MIN_PLOT[0] or plot[1] < MIN_PLOT[1]:
        return chart
    first = min(float(curve.steps[0]) for curve in curves)
    last = max(float(curve.steps[-1]) for curve in curves)
    frame = _Frame(chart, axis, gutter + 1, plot[0], plot[1], first, last)
    frame.value_axis(ticks, tick_labels)
    frame.step_axis()
    for number, curve in enumerate(curves):
        frame.curve(curve, Ink.CURVE + number)
    frame.marks(np.asarray(resumes, np.float64), RESUMED, Ink.RESUMED)
    for curve in curves:
        if log:
            frame.marks(curve.steps[curve.values <= 0], BELOW, Ink.GAP)
        frame.marks(curve.steps[~np.isfinite(curve.values)], GAP, Ink.GAP)
    frame.marks(np.empty(0) if gaps is None else gaps, GAP, Ink.GAP)
    return chart


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot area in the chart: its left column, its width and height, and the steps it spans."""

    chart: Chart
    axis: Axis
    left: int
    width: int
    height: int
    first: float
    last: float

    def value_axis(self, ticks: Sequence[float], tick_labels: Sequence[str]) -> None:
        for row in range(self.height):
            self._write(row, self.left - 1, "│", Ink.AXIS)
        places = self.axis.place(np.asarray(ticks, np.float64))
        taken: set[int] = set()
        for place, label in zip(places, tick_labels, strict=True):
            row = self._row(float(place))
            if row in taken:
                continue
            taken.add(row)
            self._write(row, self.left - 2 - len(label), label, Ink.AXIS)
            self._write(row, self.left - 1, "┤", Ink.AXIS)
            self._write(row, self.left, GRID * self.width, Ink.GRID)

    def step_axis(self) -> None:
        self._write(self.height, self.left - 1, "└" + "─" * self.width, Ink.AXIS)
        count = max(2, self.width // _CELLS_A_STEP_LABEL)
        inner = [step for step in round_steps(self.first, self.last, count) if step == int(step)]
        taken: list[range] = []  # columns of the labels so far, each with a blank around it
        for step in (self.first, self.last, *inner):
            label = f"{step:.0f}"
            column = int(self._columns(np.array([step]))[0])
            start = min(max(self.left + column - len(label) // 2, 0), self.left + self.width - len(label))
            end = start + len(label)
            if any(start < other.stop and other.start < end for other in taken):
                continue
            self._write(self.height, self.left + column, "┬", Ink.AXIS)
            self._write(self.height + 1, start, label, Ink.AXIS)
            taken.append(range(start - 1, end + 1))

    def curve(self, curve: Curve, ink: int) -> None:
        columns = braille.columns_of(curve.steps, self.first, self.last, 2 * self.width)
        finite = np.isfinite(curve.values)
        heights = np.full(len(columns), np.nan)
        heights[finite] = self.axis.place(curve.values[finite])
        dots = braille.curve(columns, heights, (4 * self.height, 2 * self.width))
        self._overlay(braille.cells(dots), ink)
        if curve.points and len(columns) <= self.width // 3:
            for column, height in zip(columns[finite] // 2, heights[finite], strict=True):
                self._write(self._row(float(height)), self.left + int(column), POINT, ink)

    def marks(self, steps: Floats, mark: str, ink: int) -> None:
        steps = steps[(steps >= self.first) & (steps <= self.last)]
        columns = self.left + self._columns(steps)
        self.chart.characters[self.height, columns] = ord(mark)
        self.chart.inks[self.height, columns] = ink

    def _columns(self, steps: Floats) -> NDArray[np.int64]:
        """Cell columns of steps, counted from the plot's left."""
        return braille.columns_of(steps, self.first, self.last, 2 * self.width) // 2

    def _row(self, place: float) -> int:
        """The cell row of a place from 0 to 1: that of the dot which a curve sets there."""
        return (4 * self.height - 1 - round(place * (4 * self.height - 1))) // 4

    def _overlay(self, codes: Grid, ink: int) -> None:
        """Sets cells. Where an earlier curve is already, the dots are joined and its ink stays."""
        area = (slice(0, self.height), slice(self.left, self.left + self.width))
        characters, inks = self.chart.characters[area], self.chart.inks[area]
        set_here = codes != braille.BLANK
        shared = inks >= Ink.CURVE
        characters[:] = np.where(set_here, np.where(shared, characters | codes, codes), characters)
        inks[set_here & ~shared] = ink

    def _write(self, row: int, column: int, text: str, ink: int) -> None:
        end = column + len(text)
        self.chart.characters[row, column:end] = [ord(character) for character in text]
        self.chart.inks[row, column:end] = ink
