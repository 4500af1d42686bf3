"""The value axis of a chart: which range it spans, how values map onto it, and where its ticks are.

A linear axis spans the finite values with a little air; a logarithmic one the positive values. Ticks are at
1, 2 or 5 times a power of ten. Values up to the largest float are safe: they are scaled before subtracting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nf4tui.dashboard.text import scientific

_AIR = 0.04  # of the span, above and below
_EMPTY = (0.0, 1.0)
_EXPONENTS = (-300.0, 308.25)  # of ten: what is smaller is shown as the smallest, and nothing overflows


@dataclass(frozen=True, slots=True)
class Axis:
    """lo, hi: the range shown, in units of the axis: of the values / scale, or of log10(values)."""

    lo: float
    hi: float
    log: bool
    scale: float = 1.0

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions of finite values: 0 at the lower end, 1 at the upper, clipped. On a logarithmic axis
        values that are not positive lie at the lower end."""
        if self.log:
            positive = values > 0
            units = np.where(positive, _exponents(np.where(positive, values, 1.0)), self.lo)
        else:
            units = values / self.scale
        return np.clip((units - self.lo) / (self.hi - self.lo), 0.0, 1.0)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values within the range."""
        if not self.log:
            ticks = [tick * self.scale for tick in round_steps(self.lo, self.hi, count)]
            return [tick for tick in ticks if math.isfinite(tick)]
        lo, hi = 10.0**self.lo, 10.0**self.hi
        powers = range(math.floor(self.lo), math.ceil(self.hi) + 1)
        fine = [tick for e in powers for m in (1, 2, 5) if lo <= (tick := float(f"{m}e{e}")) <= hi]
        decades = [tick for e in powers if lo <= (tick := float(f"1e{e}")) <= hi]
        if len(fine) < 2:  # less than a decade: round values, so that there are two
            return [tick for tick in round_steps(lo, hi, count) if tick > 0]
        ticks = fine if len(fine) <= 1.5 * count or len(decades) < 2 else decades
        return ticks[:: math.ceil(len(ticks) / (1.5 * count))]


def axis_over(series: Sequence[NDArray[np.float64]], *, log: bool) -> Axis:
    """The axis that holds the finite values of all series."""
    finite = [values[np.isfinite(values)] for values in series]
    values = np.concatenate(finite) if finite else np.empty(0)
    if log:
        values = _exponents(values[values > 0])
    if not len(values):
        return Axis(*_EMPTY, log=log)
    lo, hi = float(values.min()), float(values.max())
    largest = max(abs(lo), abs(hi))
    # A power of ten, so that what is round in units of it is round.
    scale = 1.0 if log or largest == 0 else 10.0 ** math.floor(max(math.log10(largest), _EXPONENTS[0]))
    lo, hi = lo / scale, hi / scale
    air = (hi - lo) * _AIR
    if hi - lo < 1e-9:  # a constant: in the middle
        air = 0.5 if log else max(abs(hi), 1.0) * 0.5
    lo, hi = lo - air, hi + air
    return Axis(lo, min(hi, _EXPONENTS[1]) if log else hi, log, scale)


def _exponents(positive: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(np.log10(positive), *_EXPONENTS)


def round_steps(lo: float, hi: float, count: int) -> list[float]:
    """Multiples within [lo, hi] of 1, 2 or 5 x 10^k: at most about `count` of them, and two at least."""
    span = hi - lo
    if not (math.isfinite(span) and span > 0):
        return []
    power = 10.0 ** math.floor(math.log10(span / max(count, 1)))
    steps = [m * power for m in (20, 10, 5, 2, 1, 0.5, 0.2)]
    allowed = next(at for at in range(4, -1, -1) if span / steps[at] <= count)
    for step in steps[allowed:]:
        first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
        if last > first:
            break
    return [multiple * step for multiple in range(first, last + 1)]


def labels(ticks: Sequence[float], *, log: bool) -> list[str]:
    """The ticks as text: on a linear axis with the digits that tell them apart, all alike."""
    if log:
        return [_short(tick) for tick in ticks]
    largest = max((abs(tick) for tick in ticks), default=0.0)
    apart = min((abs(b - a) for a, b in pairwise(ticks)), default=largest)
    if not apart:
        return [_short(tick) for tick in ticks]
    last_digit = math.floor(math.log10(apart) + 1e-9)
    if 1e4 <= largest < 1e6 and last_digit >= 2:
        decimals = max(0, 3 - last_digit)
        return [f"{tick / 1e3:.{decimals}f}k" if tick else "0" for tick in ticks]
    if largest >= 1e5 or largest < 1e-3:
        digits = max(0, math.floor(math.log10(largest) + 1e-9) - last_digit)
        return [scientific(tick, min(digits, 3)) for tick in ticks]
    return [format(tick, f".{max(0, -last_digit)}f") for tick in ticks]


def _short(value: float) -> str:
    return format(value, "g") if 1e-3 <= abs(value) < 1e5 or value == 0 else scientific(value, 0)
