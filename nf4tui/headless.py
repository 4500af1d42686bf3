"""A run as plain text: one aligned line a step, or with --json one object a line, and nothing else.

A progress bar stands under the lines on a terminal only. What is not finite is shown as `non-finite`.
A standard output that is closed (`| head`) asks the run to stop after a checkpoint.
"""

import math
import time
from typing import TextIO

from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    LogEvent,
    ParityEvent,
    PrecisionEvent,
    StartEvent,
    StateEvent,
    StepEvent,
    to_json,
)
from nf4tui.sanitize import visible

_BAR_CELLS = 30
_ERASE_LINE = "\r\x1b[K"


def log_line(event: Event, total_steps: int | None = None) -> str:
    """The event as one line, safe for a terminal. total_steps widens the step column to its digits."""
    match event:
        case StartEvent():
            line = _start_line(event)
        case StepEvent():
            line = _step_line(event, total_steps)
        case EvalEvent():
            best = "  best so far" if event.best else ""
            line = f"eval {_step(event.step, total_steps)}  loss {number(event.loss, '.4f')}  " + (
                f"{event.tokens} supervised tokens of {event.samples} samples{best}"
            )
        case PrecisionEvent():
            line = (
                f"precision {_step(event.step, total_steps)}  logits relL2 {number(event.rel_l2, '.1e')}"
                f"  worst {number(event.worst.rel_l2, '.1e')} at {event.worst.tap}"
            )
        case ParityEvent():
            line = (
                f"parity {_step(event.step, total_steps)}  {'ok' if event.ok else 'NOT OK'}"
                f"  worst ratio {number(event.worst.ratio, '.2f')} at {event.worst.tap}"
                f"  logits relL2 {number(event.logits.rel_l2, '.1e')}"
            )
        case CheckpointEvent():
            line = f"checkpoint {event.path}"
        case LogEvent():
            line = event.message if event.level == "info" else f"{event.level}: {event.message}"
        case StateEvent():
            line = event.state
        case DoneEvent():
            which = "the last step's" if event.best_step is None else f"the best, of step {event.best_step}"
            line = (
                f"done after step {event.step}: adapter {event.adapter} ({which};"
                f" read back with loss {number(event.reloaded_loss, '.4f')})"
            )
        case ErrorEvent():
            line = f"error: {event.message}"
    return " ".join(visible(line).splitlines())


def number(value: float, form: str) -> str:
    """The number in that format, or `non-finite`, padded to the format's width."""
    if math.isfinite(value):
        return format(value, form)
    width = form.partition(".")[0]
    return format("non-finite", f">{width}" if width.isdigit() else "")


class Headless:
    """Shows a run's events on `out` as they come.

    bar: whether a progress bar may be drawn, which needs a terminal that can erase a line.
    """

    def __init__(self, out: TextIO, *, as_json: bool, bar: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._bar = bar and not as_json
        self._total: int | None = None
        self._seconds_a_step = 0.0

    def show(self, event: Event) -> None:
        """Writes and flushes one line. Raises OSError where nobody reads any more, or the disk is full.

        As text an error only clears the bar away: the command line says it, on standard error.
        """
        if isinstance(event, StartEvent):
            self._total = event.total_steps
        if self._bar:
            self._out.write(_ERASE_LINE)
        if self._as_json:
            self._out.write(f"{to_json(event)}\n")
        elif not isinstance(event, ErrorEvent):
            self._out.write(f"{log_line(event, self._total)}\n")
        if self._bar and isinstance(event, StepEvent):
            self._out.write(self._progress(event))
        self._out.flush()

    def _progress(self, event: StepEvent) -> str:
        """A bar with the time left at the pace of the last steps."""
        total = self._total or event.step
        pace = event.step_ms / 1e3
        self._seconds_a_step = 0.9 * self._seconds_a_step + 0.1 * pace if self._seconds_a_step else pace
        filled = _BAR_CELLS * event.step // total
        left = time.strftime("%H:%M:%S", time.gmtime(self._seconds_a_step * (total - event.step)))
        bar = "#" * filled + "." * (_BAR_CELLS - filled)
        return f"[{bar}] {100 * event.step // total:3d}% {left} left"


def _start_line(event: StartEvent) -> str:
    begun = "training" if event.resumed_from is None else f"resuming from step {event.resumed_from}"
    data = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in event.data.items() if count)
    return f"{begun}: {event.model} on {event.device}, {event.total_steps} steps; {data}"


def _step_line(event: StepEvent, total_steps: int | None) -> str:
    seconds = max(event.step_ms, 1e-3) / 1e3
    line = (
        f"step {_step(event.step, total_steps)}"
        f"  loss {number(event.loss, '10.4f')}"
        f"  lr {event.lr:.2e}"
        f"  grad norm {number(event.grad_norm, '10.4f')}"
        f"  tokens {event.tokens:6d}"
        f"  tok/s {event.tokens / seconds:8.0f} ({event.supervised_tokens / seconds:.0f} supervised)"
        f"  {event.step_ms:8.1f} ms"
    )
    if not event.applied:
        line += f"  NOT APPLIED: {event.nonfinite} non-finite, first in {event.nonfinite_tensor}"
    return line


def _step(step: int, total_steps: int | None) -> str:
    if total_steps is None:
        return str(step)
    return f"{step:{len(str(total_steps))}d}/{total_steps}"
