"""Which samples an epoch takes where data files have weights.

A file of weight w gives each of its samples floor(w) times an epoch, and a share of them, the fraction of w,
once more: the next ones of one fixed shuffled round, so that with a weight of 0.5 two epochs see every
sample once. No part is left out of an epoch altogether.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nf4tui.errors import InputError


def check_weights(weights: Sequence[float], files: int) -> None:
    """Raises InputError unless there is one positive weight for each of `files` data arguments."""
    if len(weights) != files:
        raise InputError(f"--weights: {len(weights)} weights for {files} DATA arguments; give one for each")
    for weight in weights:
        if not 0 < weight <= 1000:
            raise InputError(f"--weights {weight:g}: a weight must be above 0 and at most 1000")


def shuffled(seed: int, stream: int, count: int) -> NDArray[np.intp]:
    """A permutation of `count`, by the raw 64-bit words of NumPy's Philox, whose bit stream is fixed
    (Generator.permutation may change between NumPy versions)."""
    words = np.random.Philox(key=np.array([seed % 2**64, stream % 2**64], np.uint64)).random_raw(count)
    return np.argsort(words, kind="stable")


class Mixture:
    """sizes: samples of each part, which follow one another. weights: one a part."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        if len(sizes) != len(weights):
            raise ValueError(f"{len(weights)} weights for {len(sizes)} parts")
        self._sizes, self._weights, self._seed = tuple(sizes), tuple(weights), seed

    @property
    def same_every_epoch(self) -> bool:
        """Whether every epoch takes the same samples: all weights are whole."""
        return all(float(weight).is_integer() for weight in self._weights)

    def epoch(self, epoch: int) -> list[int]:
        """The indices of the samples of a 0-based epoch, repeats included."""
        chosen: list[int] = []
        first = 0
        for part, (size, weight) in enumerate(zip(self._sizes, self._weights, strict=True)):
            whole = int(weight)
            chosen += [*range(first, first + size)] * whole
            extra = round((weight - whole) * size)
            if size and whole == 0:
                extra = max(1, extra)
            if extra:
                # Streams count down from the top; those of the epochs' orders count up from 0.
                order = shuffled(self._seed, -1 - part, size)
                start = epoch * extra
                chosen += [first + int(order[(start + place) % size]) for place in range(extra)]
            first += size
        return chosen
