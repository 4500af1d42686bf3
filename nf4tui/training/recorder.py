"""The run directory's view of an attempt: events.jsonl, log.txt and status.json, all fed by one stream."""

from types import TracebackType

from nf4tui.headless import log_line
from nf4tui.runs import control
from nf4tui.runs.control import Word
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.event_log import EventLog
from nf4tui.runs.events import CheckpointEvent, DoneEvent, Event, StateEvent
from nf4tui.runs.status import StatusFile
from nf4tui.training.signals import StopSignals


class Recorder:
    """Records events, and hears what the loop should do next. Entering makes the attempt visible to viewers;
    leaving says how it ended: finished, stopped, or failed."""

    def __init__(self, run: RunDirectory, signals: StopSignals) -> None:
        self._run = run
        self._signals = signals
        self._last: Event | None = None

    def __enter__(self) -> "Recorder":
        self._events = EventLog(self._run.events)
        self._log = self._run.log.open("a", encoding="utf-8", errors="backslashreplace")
        self._status = StatusFile(self._run.status)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finished = isinstance(self._last, DoneEvent)
        failed = kind is not None and kind is not GeneratorExit
        try:
            self._status.set_state("failed" if failed else "finished" if finished else "stopped")
        except OSError:
            # A full disk is reported by the error that is on its way already; alone, it is the error.
            if error is None:
                raise
        finally:
            self._events.close()
            self._log.close()

    def record(self, event: Event) -> Event:
        """Writes the event to the run and gives it back."""
        self._events.append(event)
        self._log.write(f"{event.time}  {log_line(event)}\n")
        self._log.flush()
        if isinstance(event, CheckpointEvent | DoneEvent):
            self._events.sync()
        if isinstance(event, StateEvent):
            self._status.set_state(event.state)
        self._status.beat()
        self._last = event
        return event

    def poll(self) -> list[Word]:
        """The words that came since the last call; a signal is the word `stop`."""
        self._status.beat()
        words = control.take(self._run.control)
        return [*words, "stop"] if self._signals.received is not None else words
