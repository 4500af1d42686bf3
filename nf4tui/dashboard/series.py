"""One quantity over the steps of a run, growing at its end: amortised appends, NumPy views."""

import numpy as np
from numpy.typing import NDArray

_FIRST_SIZE = 256

Values = NDArray[np.float64]


class Series:
    """Points (step, value) with strictly increasing steps. Values may be anything, NaN and inf included."""

    def __init__(self) -> None:
        self._points = np.empty((2, _FIRST_SIZE))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def steps(self) -> Values:
        """[n] float64, a view."""
        return self._points[0, : self._length]

    @property
    def values(self) -> Values:
        """[n] float64, a view."""
        return self._points[1, : self._length]

    @property
    def last(self) -> float | None:
        """The newest value; None while there is none."""
        return float(self._points[1, self._length - 1]) if self._length else None

    def put(self, step: int, value: float) -> None:
        """Appends a point. A step that is not beyond the last one replaces it and all that follow it."""
        if self._length and step <= self._points[0, self._length - 1]:
            self.keep_up_to(step - 1)
        if self._length == self._points.shape[1]:
            self._points = np.concatenate((self._points, np.empty_like(self._points)), axis=1)
        self._points[:, self._length] = step, value
        self._length += 1

    def keep_up_to(self, step: int) -> None:
        """Drops the points beyond `step`."""
        self._length = int(np.searchsorted(self.steps, step, side="right"))

    def recent(self, first_step: float) -> tuple[Values, Values]:
        """Views of the steps from `first_step` on, and of their values."""
        start = int(np.searchsorted(self.steps, first_step))
        return self.steps[start:], self.values[start:]
