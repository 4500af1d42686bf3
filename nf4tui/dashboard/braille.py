"""Curves as dots: a braille cell is 2 dots wide and 4 high (Unicode U+2800 + one bit a dot).

However many points a curve has, a dot column shows the span from its smallest to its largest value there
(min/max decimation: no spike is lost), and neighbouring points are joined by a line, except across values
that are not finite. Everything is array arithmetic, so no value and no number of gaps makes it slow.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLANK = 0x2800
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint32)  # [row, column]


def columns_of(steps: Floats, first: float, last: float, width: int) -> Ints:
    """The dot column of each step, of `width` over the steps first..last (the middle where those are one)."""
    if last <= first:
        return np.full(len(steps), width // 2, np.int64)
    return np.rint((steps - first) / (last - first) * (width - 1)).astype(np.int64)


def curve(columns: Ints, heights: Floats, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """The dots of a curve, True where one is set: [rows, columns] = shape, the first row on top.

    columns: [n] int, never decreasing. heights: [n] float from 0 (bottom) to 1 (top); NaN is a gap.
    """
    rows, width = shape
    lowest = np.full(width, np.inf)
    highest = np.full(width, -np.inf)
    shown = np.isfinite(heights)
    position = heights * (rows - 1)
    np.minimum.at(lowest, columns[shown], position[shown])
    np.maximum.at(highest, columns[shown], position[shown])
    _join(columns, position, shown, lowest, highest)
    # A row belongs to a column's span if its centre does, after rounding both ends to centres.
    filled = np.isfinite(lowest)
    bottom = np.rint(np.where(filled, lowest, 1.0)).astype(np.int64)
    top = np.rint(np.where(filled, highest, 0.0)).astype(np.int64)
    row = np.arange(rows - 1, -1, -1)[:, None]
    dots: NDArray[np.bool_] = (row >= bottom) & (row <= top) & filled
    return dots


def _join(columns: Ints, position: Floats, shown: NDArray[np.bool_], lowest: Floats, highest: Floats) -> None:
    """Widens the spans by the lines between neighbouring points of different columns.

    There are at most as many such lines as dot columns, and together they cover each column once or twice.
    """
    edge = np.flatnonzero(shown[:-1] & shown[1:] & (columns[:-1] < columns[1:]))
    if not len(edge):
        return
    start, end = columns[edge], columns[edge + 1]
    length = end - start + 1
    line = np.repeat(np.arange(len(edge)), length)
    offset = np.arange(len(line)) - np.repeat(np.cumsum(length) - length, length)
    at = start[line] + offset
    rise = (position[edge + 1] - position[edge]) / (end - start)
    for shift in (-0.5, 0.5):  # a column shows the line from its left to its right border
        along = np.clip(offset + shift, 0, (end - start)[line])
        height = position[edge][line] + rise[line] * along
        np.minimum.at(lowest, at, height)
        np.maximum.at(highest, at, height)


def cells(dots: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Dots [4 h, 2 w] as code points [h, w]; a cell without dots is BLANK."""
    height, width = dots.shape[0] // 4, dots.shape[1] // 2
    quads = dots.reshape(height, 4, width, 2).astype(np.uint32)
    packed: NDArray[np.uint32] = np.einsum("hrwc,rc->hw", quads, _BITS).astype(np.uint32) + BLANK
    return packed
