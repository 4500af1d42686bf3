"""How far a run is: all that the loop remembers from one step to the next, beside the engine's tensors."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

NONFINITE_LIMIT = 3  # steps in a row without an update, after which a run has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """step: optimiser steps taken, applied or not. best_loss: the lowest validation loss, at best_step.
    stale_evaluations: validations since then. nonfinite_in_a_row: steps not applied, up to this one."""

    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    stale_evaluations: int = 0
    nonfinite_in_a_row: int = 0

    def after_step(self, applied: bool) -> "Progress":
        nonfinite = 0 if applied else self.nonfinite_in_a_row + 1
        return dataclasses.replace(self, step=self.step + 1, nonfinite_in_a_row=nonfinite)

    def after_evaluation(self, loss: float) -> "Progress":
        """A loss that is not finite is never the best."""
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            return dataclasses.replace(self, best_step=self.step, best_loss=loss, stale_evaluations=0)
        return dataclasses.replace(self, stale_evaluations=self.stale_evaluations + 1)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Progress":
        """Raises KeyError where a value is missing."""
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
