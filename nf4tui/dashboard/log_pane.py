"""What happened, in words: every event but what the charts show, which are steps that went well and precision.

Drawn line by line: longer entries go on beside their time, and are wrapped anew when the width changes.
"""

from collections import deque
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nf4tui.dashboard.palette import GREEN, MUTED, ORANGE, VERMILLION
from nf4tui.dashboard.text import clock, wrapped
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

MAX_ENTRIES = 2000
_TIME_CELLS = 9


@dataclass(frozen=True, slots=True)
class _Entry:
    time: str
    words: str
    style: str


class LogPane(ScrollView, can_focus=True):
    """A log that follows its end while that is in view."""

    def __init__(self, number: int) -> None:
        """number: the key that focuses it."""
        super().__init__(id="log", classes="pane log")
        self.border_title = Content.assemble((f"{number} ", MUTED), ("log", "bold"))
        self._entries: deque[_Entry] = deque(maxlen=MAX_ENTRIES)
        self._rows: list[tuple[str, str, str]] = []  # time, words, style
        self._width = 0
        self._following = True  # the end, until somebody scrolls away from it

    def add(self, event: Event, total_steps: int | None) -> None:
        """Appends the event, if it is for the log."""
        if isinstance(event, PrecisionEvent) or (isinstance(event, StepEvent) and event.applied):
            return
        full = len(self._entries) == MAX_ENTRIES
        entry = _Entry(clock(event.time), _words(event, total_steps), _style(event))
        self._entries.append(entry)
        if full:
            self._wrap_all()
        elif self._width:
            self._rows.extend(self._wrap(entry))
        self._show()

    def on_resize(self, event: Resize) -> None:
        width = self.scrollable_content_region.width
        if width != self._width:
            self._width = width
            self._wrap_all()
            self._show()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= len(self._rows) - self.size.height

    def render_line(self, y: int) -> Strip:
        width, row = self.size.width, y + self.scroll_offset.y
        base = self.rich_style
        if row >= len(self._rows):
            return Strip.blank(width, base)
        time, words, style = self._rows[row]
        strip = Strip(
            [
                Segment(f"{time:<{_TIME_CELLS}}", base + Style.parse(MUTED)),
                Segment(words, base + Style.parse(style) if style else base),
            ]
        )
        return strip.adjust_cell_length(width, base)

    def _wrap(self, entry: _Entry) -> list[tuple[str, str, str]]:
        lines = wrapped(entry.words, max(1, self._width - _TIME_CELLS))
        return [(entry.time if not at else "", line, entry.style) for at, line in enumerate(lines)]

    def _wrap_all(self) -> None:
        self._rows = [row for entry in self._entries for row in self._wrap(entry)]

    def _show(self) -> None:
        self.virtual_size = Size(self._width, len(self._rows))
        if self._following:
            self.scroll_end(animate=False)
        self.refresh()


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
