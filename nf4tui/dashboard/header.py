"""Two lines above all panes: which run, how it is doing, how far it is and what is wrong with it."""

from rich.text import Text
from textual.widget import Widget

from nf4tui.dashboard.chart import GAP
from nf4tui.dashboard.condition import SYMBOLS, Condition
from nf4tui.dashboard.history import History
from nf4tui.dashboard.palette import FAINT, GREEN, MUTED, SKY, STATES, VERMILLION
from nf4tui.dashboard.text import duration, fitted

_PROGRAM = Text("nf4tui", f"bold {SKY}")
_ASKED = {
    "pause": "pausing after this step",
    "checkpoint": "saving after this step",
    "resume": "going on",
    "stop": "stopping after this step, with a checkpoint",
}


class Header(Widget):
    """asked: the word sent to the trainer that it has not answered yet."""

    def __init__(self, title: str, history: History) -> None:
        super().__init__(id="header")
        self._title = title
        self._history = history
        self._condition = Condition("starting")
        self._shown: object = None
        self.asked: str | None = None

    def show(self, condition: Condition) -> None:
        """Shows the condition, and the history as it is now."""
        silence = round(condition.silent_seconds) if condition.silent else 0
        shown = (condition.state, silence, self.asked, self._history.version)
        self._condition = condition
        if shown != self._shown:
            self._shown = shown
            self.refresh()

    def render(self) -> Text:
        width = self.size.width
        return Text("\n").join([self._first_line(width), self._progress(width)])

    def _first_line(self, width: int) -> Text:
        """Name, state and health; of a name that is too long the end, since the others say more."""
        state, health = self._state(), self._health()
        name = fitted(self._title, max(0, width - _PROGRAM.cell_len - state.cell_len - health.cell_len - 4))
        left = Text.assemble(_PROGRAM, " ", (name, "bold"), "  ", state)
        return Text.assemble(left, " " * max(1, width - left.cell_len - health.cell_len), health)

    def _state(self) -> Text:
        state = self._condition.state
        text = Text(f"{SYMBOLS[state]} {state}", f"bold {STATES[state]}")
        if self.asked is not None and self._condition.alive:
            text.append(f"  {_ASKED[self.asked]}", f"not bold {STATES['paused']}")
        elif self._condition.silent:
            silence = duration(self._condition.silent_seconds)
            text.append(f"  silent for {silence}", f"not bold {STATES['paused']}")
        return text

    def _health(self) -> Text:
        steps = len(self._history.nonfinite_steps)
        if not steps:
            return Text("non-finite 0", GREEN)
        return Text(f"{GAP} non-finite in {steps:,} step{'s' if steps > 1 else ''}", f"bold {VERMILLION}")

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
