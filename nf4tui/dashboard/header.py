"""Two lines above all panes: which run, how it is doing, how far it is and what is wrong with it."""

from rich.text import Text
from textual.widget import Widget

from nf4tui.dashboard.chart import GAP
from nf4tui.dashboard.condition import SYMBOLS, Condition
from nf4tui.dashboard.history import History
from nf4tui.dashboard.palette import FAINT, GREEN, MUTED, SKY, STATES, VERMILLION
from nf4tui.dashboard.text import duration, fitted

_NAME_CELLS = 32
_RULES = {"pause": "pausing after this step", "checkpoint": "saving after this step"}
_RULES |= {"resume": "going on", "stop": "stopping after this step, with a checkpoint"}


class Header(Widget):
    """asked: the word sent to the trainer that it has not answered yet."""

    def __init__(self, title: str, history: History) -> None:
        super().__init__(id="header")
        self._title = title
        self._history = history
        self._condition = Condition("starting")
        self.asked: str | None = None

    def show(self, condition: Condition) -> None:
        """Shows the condition, and the history as it is now."""
        self._condition = condition
        self.refresh()

    def render(self) -> Text:
        width = self.size.width
        return Text("\n").join([self._first_line(width), self._progress(width)])

    def _first_line(self, width: int) -> Text:
        state = self._condition.state
        left = Text.assemble(
            ("nf4tui ", f"bold {SKY}"),
            (fitted(self._title, _NAME_CELLS), "bold"),
            "  ",
            (f"{SYMBOLS[state]} {state}", f"bold {STATES[state]}"),
        )
        if self.asked is not None and self._condition.alive:
            left.append(f"  {_RULES[self.asked]}", STATES["paused"])
        elif self._condition.silent:
            left.append(f"  silent for {duration(self._condition.silent_seconds)}", STATES["paused"])
        right = self._health()
        room = width - left.cell_len - right.cell_len
        if room < 1:
            left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis")
            room = width - left.cell_len - right.cell_len
        return Text.assemble(left, " " * max(0, room), right)

    def _health(self) -> Text:
        steps = len(self._history.nonfinite_steps)
        if not steps:
            return Text("non-finite 0", GREEN)
        return Text(f"{GAP} non-finite in {steps} step{'s' if steps > 1 else ''}", f"bold {VERMILLION}")

    def _progress(self, width: int) -> Text:
        history, total = self._history, self._history.total_steps
        if not total:
            return Text("waiting for the first event", MUTED)
        taken = history.steps_taken
        text = f" step {taken:,}/{total:,}  {taken / total:4.0%}"
        left = history.seconds_left
        if left is not None and self._condition.alive:
            text += f"  {duration(left)} left"
        cells = max(0, width - len(text))
        filled = min(cells, round(cells * taken / total))
        colour = STATES[self._condition.state]
        return Text.assemble(("━" * filled, colour), ("─" * (cells - filled), FAINT), text)
