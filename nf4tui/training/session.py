"""One attempt at a run, from settings to the last event, recorded in the run directory as it goes.

    new run:  check --out -> prepare -> begin (folder, lock, config.toml) -> train
    resume:   lock -> stored settings -> prepare -> newest checkpoint that verifies -> train
Nothing is written before everything that can be refused has been.
"""

import signal
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from nf4tui.config import TrainConfig
from nf4tui.errors import CannotRunError, InputError, Nf4tuiError, TrainingFailedError
from nf4tui.runs import directory
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.event_log import read_events
from nf4tui.runs.events import DoneEvent, ErrorEvent, Event, LogEvent, StartEvent
from nf4tui.runs.settings import read_settings, resumed, to_toml, with_absolute_paths
from nf4tui.runs.status import read_status
from nf4tui.training import snapshot
from nf4tui.training.loop import train
from nf4tui.training.prepare import prepare
from nf4tui.training.prepared import Prepared
from nf4tui.training.publish import is_published
from nf4tui.training.recorder import Recorder
from nf4tui.training.signals import StopSignals
from nf4tui.training.snapshot import Snapshot


def attempt(
    config: TrainConfig, *, resume: bool, explicit: frozenset[str], signals: StopSignals
) -> Generator[Event, None, None]:
    """Trains a new run, or with `resume` goes on with the one at config.out, where there is one.

    Every event is recorded before it is yielded. Closing the iterator ends the attempt as a kill would,
    but tidily. Raises Nf4tuiError; what is raised after the run began is recorded, too.
    """
    run = directory.run_at(config.out)
    if resume and directory.exists(run):
        with directory.take_up(run):
            config = resumed(read_settings(run.config), config, explicit)
            done = _finished(run)
            if done is not None:
                yield LogEvent(level="info", message=f"{run.path}: already finished at step {done.step}")
                yield done
                return
            prepared = _prepare(config, frozenset(), _newest_path(run))
            yield from _recorded(prepared, run, signals, [])
        return
    directory.check_free(run)
    config = with_absolute_paths(config)
    to_toml(config)  # refuses a path that config.toml cannot hold, before anything is read
    prepared = _prepare(config, explicit)
    notes = [LogEvent(level="info", message=f"{run.path}: no run to resume; beginning it")] if resume else []
    with directory.begin(run, prepared.config):
        yield from _recorded(prepared, run, signals, notes)


def exit_code(last: Event | None, signals: StopSignals) -> int:
    """Of an attempt that raised nothing: 0 where it finished, else 128 + the signal that stopped it. The
    word `stop` counts as SIGTERM."""
    if isinstance(last, DoneEvent):
        return 0
    return 128 + (signals.received or signal.SIGTERM)


def _prepare(config: TrainConfig, explicit: frozenset[str], checkpoint: Path | None = None) -> Prepared:
    try:
        return prepare(config, explicit, checkpoint)
    except MemoryError:
        raise CannotRunError(
            f"{config.model}: not enough memory to load it; free some, or take a smaller model"
        ) from None


def _recorded(
    prepared: Prepared, run: RunDirectory, signals: StopSignals, notes: list[LogEvent]
) -> Generator[Event, None, None]:
    """Trains with every event, after the notes, in events.jsonl and log.txt before it is yielded."""
    signals.begun = True
    attempts = sum(isinstance(event, StartEvent) for event in read_events(run.events))
    try:
        with Recorder(run, signals) as recorder:
            try:
                found = _newest(prepared, run, notes)
                for note in notes:
                    yield recorder.record(note)
                events = train(prepared, run, attempt=attempts + 1, resume=found, poll=recorder.poll)
                with closing(events):
                    for event in events:
                        yield recorder.record(event)
            except Exception as error:
                # Whatever it is, a viewer must see why the run ended; then it is raised on.
                failure = _as_failure(error, run)
                message = str(failure) if failure else f"{type(error).__name__}: {error}"
                yield recorder.record(ErrorEvent(message=message))
                if failure is None or failure is error:
                    raise
                raise failure from error
    except OSError as error:
        raise _as_failure(error, run) or error from None


def _as_failure(error: Exception, run: RunDirectory) -> Nf4tuiError | None:
    """The error as the user shall read it; None for what can only be a fault of this program."""
    match error:
        case Nf4tuiError():
            return error
        case OSError():
            where = error.filename or run.path
            return TrainingFailedError(f"{where}: {error.strerror}; then --resume goes on")
        case MemoryError():
            return TrainingFailedError("out of memory; --resume with more of it goes on")
        case _:
            return None


def _newest_path(run: RunDirectory) -> Path | None:
    """The newest checkpoint that verifies, if any."""
    found = (found.path for found in snapshot.usable(run.checkpoints) if isinstance(found, Snapshot))
    return next(found, None)


def _newest(prepared: Prepared, run: RunDirectory, notes: list[LogEvent]) -> Snapshot | None:
    """The checkpoint to resume from, if any; what there is to say about it is added to the notes.

    Raises InputError where it belongs to other data or another base.
    """
    for found in snapshot.usable(run.checkpoints):
        if isinstance(found, InputError):
            notes.append(LogEvent(level="warning", message=f"checkpoint passed over: {found}"))
            continue
        prepared.circumstances.check_same_run(found.circumstances)
        differences = prepared.circumstances.differences(found.circumstances)
        if differences:
            message = f"resumed, but not bit-exact: {', '.join(differences)}"
            notes.append(LogEvent(level="warning", message=message))
        return found
    return None


def _finished(run: RunDirectory) -> DoneEvent | None:
    """The last event of a run that is complete: its trainer said so, and adapter/ is what it published."""
    status = read_status(run.status)
    if status is None or status.state != "finished":
        return None
    done = next((event for event in reversed(read_events(run.events)) if isinstance(event, DoneEvent)), None)
    newest = next((found for found in snapshot.usable(run.checkpoints) if isinstance(found, Snapshot)), None)
    if done is None or newest is None or newest.progress.step != done.step:
        return None
    best = newest.progress.best_step
    source = newest.path if best is None else run.checkpoints / f"step-{best:06d}"
    return done if is_published(run.adapter, source) else None
