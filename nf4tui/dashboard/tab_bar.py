"""One line of pane names for screens too narrow to show the panes beside each other."""

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from nf4tui.dashboard.palette import MUTED


class TabBar(Widget):
    """names: of the panes, in the order of their keys."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(id="tabs")
        self._names = names
        self._current = 1
        self._hidden: frozenset[int] = frozenset()

    def show(self, current: int, hidden: frozenset[int]) -> None:
        """current: the number of the pane in view. hidden: those that have nothing to show."""
        self._current, self._hidden = current, hidden
        self.refresh()

    def render(self) -> Text:
        text = Text(no_wrap=True, overflow="crop")
        for number, label in self._tabs():
            text.append(label, "bold reverse" if number == self._current else MUTED)
            text.append(" ")
        return text

    def on_click(self, event: events.Click) -> None:
        end = 0
        for number, label in self._tabs():
            end += len(label) + 1
            if event.x < end:
                self.post_message(self.Chosen(number))
                return

    def _tabs(self) -> list[tuple[int, str]]:
        """Number and label of each; of those not chosen only the number where there is no room."""
        shown = [
            (number, name) for number, name in enumerate(self._names, start=1) if number not in self._hidden
        ]
        wide = sum(len(name) + 3 for _, name in shown) <= self.size.width
        return [
            (number, f"{number} {name}" if wide or number == self._current else f"{number}")
            for number, name in shown
        ]
