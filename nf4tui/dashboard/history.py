"""What the dashboard knows of a run: its events, folded one after the other into series and latest facts.

An attempt that resumes from a checkpoint takes the later steps again: they are dropped here when it starts,
so every step is shown once, as the run has it.
"""

import math
from dataclasses import dataclass, field

from nf4tui.dashboard.series import Series
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    ParityEvent,
    PrecisionEvent,
    StartEvent,
    StateEvent,
    StepEvent,
)

PACE_STEPS = 50  # the time left follows the pace of this many steps


@dataclass(slots=True)
class History:
    """Folded events. Series are over optimiser steps; rates are tokens a second; relL2 has no unit.

    nonfinite counts the non-finite numbers of each step. version grows with every event.
    """

    loss: Series = field(default_factory=Series)
    validation: Series = field(default_factory=Series)
    lr: Series = field(default_factory=Series)
    grad_norm: Series = field(default_factory=Series)
    tokens: Series = field(default_factory=Series)
    supervised: Series = field(default_factory=Series)
    step_ms: Series = field(default_factory=Series)
    nonfinite: Series = field(default_factory=Series)
    precision_logits: Series = field(default_factory=Series)
    precision_worst: Series = field(default_factory=Series)
    start: StartEvent | None = None
    step: StepEvent | None = None
    evaluation: EvalEvent | None = None
    best: EvalEvent | None = None
    precision: PrecisionEvent | None = None
    parity: ParityEvent | None = None
    checkpoint: CheckpointEvent | None = None
    done: DoneEvent | None = None
    error: ErrorEvent | None = None
    state: StateEvent | None = None
    culprit: StepEvent | None = None  # the newest step that was not finite
    resumes: list[int] = field(default_factory=list)  # steps after which a later attempt took over
    version: int = 0

    def add(self, event: Event) -> None:
        """Folds one event in."""
        self.version += 1
        match event:
            case StartEvent():
                self._start(event)
            case StepEvent():
                self._step(event)
            case EvalEvent():
                self.validation.put(event.step, event.loss)
                self.evaluation = event
                self.best = event if event.best else self.best
            case PrecisionEvent():
                self.precision_logits.put(event.step, event.rel_l2)
                self.precision_worst.put(event.step, event.worst.rel_l2)
                self.precision = event
            case ParityEvent():
                self.parity = event
            case CheckpointEvent():
                self.checkpoint = event
            case StateEvent():
                self.state = event
            case DoneEvent():
                self.done = event
            case ErrorEvent():
                self.error = event

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None before it started."""
        return None if self.start is None else self.start.total_steps

    @property
    def steps_taken(self) -> int:
        """The last step taken, by this attempt or by those it goes on from."""
        if self.step is not None:
            return self.step.step
        return (self.start.resumed_from or 0) if self.start is not None else 0

    @property
    def nonfinite_total(self) -> int:
        """Non-finite numbers over all steps."""
        return int(self.nonfinite.values.sum())

    @property
    def nonfinite_steps(self) -> list[int]:
        """The steps that had any, oldest first."""
        return [int(step) for step in self.nonfinite.steps[self.nonfinite.values > 0]]

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last steps, validation and checkpoints left out; None while unknown."""
        if self.total_steps is None or not len(self.step_ms):
            return None
        pace = float(self.step_ms.values[-PACE_STEPS:].mean())
        return max(0, self.total_steps - self.steps_taken) * pace / 1e3

    def _start(self, event: StartEvent) -> None:
        kept = event.resumed_from or 0
        if event.attempt > 1:
            self.resumes = [*(step for step in self.resumes if step < kept), kept]
        for series in self._all_series():
            series.keep_up_to(kept)
        if self.step is not None and self.step.step > kept:
            self.step = None
        if self.culprit is not None and self.culprit.step > kept:
            self.culprit = None
        self.start, self.done, self.error, self.state = event, None, None, None

    def _step(self, event: StepEvent) -> None:
        seconds = max(event.step_ms, 1e-3) / 1e3
        self.step = event
        self.loss.put(event.step, event.loss)
        self.lr.put(event.step, event.lr)
        self.grad_norm.put(event.step, event.grad_norm)
        self.tokens.put(event.step, event.tokens / seconds)
        self.supervised.put(event.step, event.supervised_tokens / seconds)
        self.step_ms.put(event.step, event.step_ms)
        self.nonfinite.put(event.step, event.nonfinite)
        if event.nonfinite or not math.isfinite(event.loss):
            self.culprit = event

    def _all_series(self) -> tuple[Series, ...]:
        return (
            self.loss,
            self.validation,
            self.lr,
            self.grad_norm,
            self.tokens,
            self.supervised,
            self.step_ms,
            self.nonfinite,
            self.precision_logits,
            self.precision_worst,
        )
