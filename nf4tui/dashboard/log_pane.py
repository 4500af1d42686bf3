"""What happened, in words: every event but what the charts show, which are steps that went well and precision."""

from collections import deque

from rich.table import Table
from rich.text import Text
from textual.content import Content
from textual.events import Resize
from textual.widgets import RichLog

from nf4tui.dashboard.palette import GREEN, MUTED, ORANGE, VERMILLION
from nf4tui.dashboard.text import clock
from nf4tui.headless import log_line
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    LogEvent,
    ParityEvent,
    PrecisionEvent,
    StateEvent,
    StepEvent,
)
from nf4tui.sanitize import one_line

MAX_LINES = 2000


class LogPane(RichLog):
    """A log that follows its end while that is in view, and wraps anew when its width changes."""

    def __init__(self, number: int) -> None:
        """number: the key that focuses it."""
        super().__init__(id="log", classes="pane log", markup=False, highlight=False, wrap=True, min_width=20)
        self.border_title = Content.assemble((f"{number} ", MUTED), ("log", "bold"))
        self._entries: deque[Table] = deque(maxlen=MAX_LINES)
        self._wrapped_at = 0

    def add(self, event: Event, total_steps: int | None) -> None:
        """Appends the event, if it is for the log."""
        if isinstance(event, PrecisionEvent) or (isinstance(event, StepEvent) and event.applied):
            return
        entry = Table.grid(padding=(0, 1))  # longer lines go on beside the time, not under it
        entry.add_row(
            Text(clock(event.time), MUTED), Text(_words(event, total_steps), _style(event), overflow="fold")
        )
        self._entries.append(entry)
        self.write(entry, scroll_end=None)

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        width = self.scrollable_content_region.width
        if width != self._wrapped_at and self._wrapped_at:
            self.clear()
            for entry in self._entries:
                self.write(entry, scroll_end=True)
        self._wrapped_at = width


def _words(event: Event, total_steps: int | None) -> str:
    """The event's line as headless output has it, but for what would be long and is elsewhere, too."""
    match event:
        case StepEvent():
            where = one_line(event.nonfinite_tensor or "the loss")
            return f"step {event.step} not applied: {event.nonfinite} non-finite, first in {where}"
        case CheckpointEvent():
            return f"checkpoint of step {event.step}"
        case _:
            return log_line(event, total_steps)


def _style(event: Event) -> str:
    match event:
        case ErrorEvent() | StepEvent() | LogEvent(level="warning"):
            return VERMILLION
        case ParityEvent() if not event.ok:
            return VERMILLION
        case EvalEvent():
            return ORANGE
        case DoneEvent():
            return GREEN
        case StateEvent():
            return "bold"
        case _:
            return ""
