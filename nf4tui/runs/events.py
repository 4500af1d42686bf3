"""The events of a run: what the training loop yields, `events.jsonl` holds and `--json` prints.

One object a line. Field names are the interface; `time` is ISO 8601 in UTC. A number that is not finite
is written as null and read back as NaN, never as 0. A field that is null by nature is typed `| None`.

An attempt begins with a start event. Steps beyond its `resumed_from` that earlier attempts had recorded
are superseded: the new attempt takes them again, with the same numbers (`current` leaves them out).
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, get_args

from nf4tui.errors import InputError

SCHEMA_VERSION = 1


def now() -> str:
    """The time as events and status.json write it, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEvent:
    """An attempt begins. attempt counts from 1; resumed_from is the checkpoint's step, None for a new run.
    data: counts by name (samples, tokens, supervised tokens, what was dropped and why)."""

    event: ClassVar[str] = "start"
    attempt: int
    resumed_from: int | None
    versions: dict[str, str]
    model: str
    device: str
    total_steps: int
    pid: int
    data: dict[str, int]
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One optimiser step. loss: mean over supervised_tokens, before the update. grad_norm: before clipping.
    tokens: real tokens. padded_tokens: all positions computed, padding included. epoch: passes over the
    data after this step. applied is false when nonfinite > 0; nonfinite_tensor names the first culprit."""

    event: ClassVar[str] = "step"
    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    padded_tokens: int
    nonfinite: int
    nonfinite_tensor: str | None
    applied: bool
    epoch: float
    step_ms: float
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEvent:
    """Validation with the adapters of `step` (0: before training). loss: mean over `tokens` supervised
    tokens of `samples` samples. best: the lowest loss so far (step 0 does not compete)."""

    event: ClassVar[str] = "eval"
    step: int
    loss: float
    tokens: int
    samples: int
    exact_match: float | None = None
    best: bool = False
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapError:
    """One tensor of a probe and its relative L2 error."""

    tap: str
    rel_l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionEvent:
    """CPU only: the float32 engine against a float64 one *of the same source*, so it shows rounding and
    never parity. rel_l2: of the logits. worst: the tap with the largest error, forward or backward."""

    event: ClassVar[str] = "precision"
    step: int
    rel_l2: float
    worst: TapError
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRatio:
    """One tap and its error in units of the error that legal arithmetic makes (NUMERICS: e_G / e_E)."""

    tap: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsError:
    """relL2 of the logits, and in units of the error that legal arithmetic makes."""

    rel_l2: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityEvent:
    """The GPU against the NumPy reference, with the adapters of `step`."""

    event: ClassVar[str] = "parity"
    step: int
    worst: TapRatio
    logits: LogitsError
    loss_gpu: float
    loss_cpu: float
    ok: bool
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent:
    """A checkpoint of `step` is complete on disk at `path`."""

    event: ClassVar[str] = "checkpoint"
    step: int
    path: str
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """level: info | warning."""

    event: ClassVar[str] = "log"
    level: str
    message: str
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvent:
    """state: running | paused | stopping."""

    event: ClassVar[str] = "state"
    state: str
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneEvent:
    """The run is finished. adapter: the folder written, of best_step where there was validation, else of
    step. reloaded_loss: the loss with the adapter read back from disk, equal to the one before writing."""

    event: ClassVar[str] = "done"
    step: int
    adapter: str
    best_step: int | None
    reloaded_loss: float
    time: str = field(default_factory=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """The attempt ended with an error."""

    event: ClassVar[str] = "error"
    message: str
    time: str = field(default_factory=now)


Event = (
    StartEvent
    | StepEvent
    | EvalEvent
    | PrecisionEvent
    | ParityEvent
    | CheckpointEvent
    | LogEvent
    | StateEvent
    | DoneEvent
    | ErrorEvent
)


def to_object(event: Event) -> dict[str, Any]:
    """The event as JSON values, `event` first, non-finite numbers as None."""
    return {"event": event.event, **_finite(dataclasses.asdict(event))}


def to_json(event: Event) -> str:
    """The event as one line of JSON without its newline (ASCII: text of any origin stays one line)."""
    return json.dumps(to_object(event), allow_nan=False)


def to_line(event: Event) -> str:
    """The event as a line of events.jsonl: to_json with the schema version."""
    return json.dumps({**to_object(event), "schema": SCHEMA_VERSION}, allow_nan=False) + "\n"


def parse(line: str | bytes) -> Event:
    """The event of one line; fields that this version does not know are ignored.

    Raises InputError when the line is not an event of this schema.
    """
    try:
        values = json.loads(line)
        if values.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise InputError(f"an event of schema {values['schema']}; this version reads {SCHEMA_VERSION}")
        kind = next(kind for kind in get_args(Event) if kind.event == values["event"])
        event: Event = _build(kind, values)
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration, RecursionError) as error:
        raise InputError(f"not an event: {line[:80]!r}") from error
    return event


def current(events: Iterable[Event]) -> list[Event]:
    """The events without the steps (and what happened at them) that a later attempt took again."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, StartEvent):
            resumed_from = event.resumed_from or 0
            kept = [old for old in kept if _step_of(old) <= resumed_from]
        kept.append(event)
    return kept


def _step_of(event: Event) -> int:
    # A baseline of step 0 is taken again by an attempt that starts at 0, with the same number.
    return getattr(event, "step", -1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _build(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from JSON values: null in a float field is NaN; a field of dataclass type is nested."""
    arguments = {}
    for item in dataclasses.fields(kind):
        if item.name not in values and item.default is not dataclasses.MISSING:
            continue
        value = values[item.name]
        if dataclasses.is_dataclass(item.type):
            value = _build(item.type, value)
        elif item.type is float:
            value = math.nan if value is None else float(value)
        elif isinstance(item.type, type) and not isinstance(value, item.type):
            raise TypeError(item.name)
        arguments[item.name] = value
    return kind(**arguments)
