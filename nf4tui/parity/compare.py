"""The one comparator: relL2(x, y) = ||x - y|| / ||y||, and a limit that NaN fails."""

from dataclasses import dataclass

from nf4tui.reference.reductions import rel_l2

__all__ = ["Comparison", "rel_l2"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An error against its limit. `ok` is written so that NaN fails."""

    rel_l2: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.rel_l2 <= self.limit
