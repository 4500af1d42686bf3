"""Device memory in one piece: planned to the byte, then taken once.

Whatever makes buffers asks a Memory for them. A Planner answers with sizes alone; an Arena with parts of one
block, in the same order, so that what was planned is what is used.
"""

from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from nf4tui.cuda_kernels.device import ALIGNMENT, DeviceArray


class Memory(Protocol):
    """Where buffers come from. A Device is one, too."""

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """`size` values that hold garbage."""
        ...


def _bytes(size: int, dtype: DTypeLike) -> int:
    """What a buffer takes: it ends where the next may begin."""
    return -(-size * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT


class Planner:
    """Counts. Its arrays have no memory behind them and cannot be used."""

    def __init__(self) -> None:
        self.bytes = 0

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """See Memory."""
        self.bytes += _bytes(size, dtype)
        return DeviceArray(0, size, np.dtype(dtype))


class Arena:
    """Hands out a block [n] uint8, from its beginning on. Raises MemoryError beyond its end."""

    def __init__(self, block: DeviceArray) -> None:
        self._block, self._used = block, 0

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """See Memory."""
        kind = np.dtype(dtype)
        start, self._used = self._used, self._used + _bytes(size, dtype)
        if self._used > self._block.size:
            raise MemoryError(f"{self._used} bytes of an arena of {self._block.size}")
        return self._block.part(start, size * kind.itemsize).view(kind)
