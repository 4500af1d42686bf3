"""A pane of facts: labels at the left, values beside them, all of them plain text."""

from collections.abc import Iterable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from nf4tui.dashboard.facts import Row
from nf4tui.dashboard.palette import MUTED
from nf4tui.dashboard.text import fitted

_LABEL_CELLS = 12


class FactsPane(VerticalScroll, can_focus=True):
    """Rows of facts, each on one line: of a long value its end is shown."""

    def __init__(self, name: str, number: int) -> None:
        """number: the key that focuses it."""
        super().__init__(id=name, classes="pane facts")
        self.border_title = Content.assemble((f"{number} ", MUTED), (name, "bold"))
        self._rows: list[Row] = []
        self._text = Static()

    def compose(self) -> ComposeResult:
        yield self._text

    def show(self, rows: Iterable[Row]) -> None:
        """Replaces the rows."""
        self._rows = list(rows)
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        width = max(self.scrollable_content_region.width, _LABEL_CELLS)
        text = Text(no_wrap=True, overflow="crop")
        for row in self._rows:
            indent = 2 if not row.label and len(row.value) > width - _LABEL_CELLS else _LABEL_CELLS
            text.append(fitted(row.label, indent).ljust(indent), MUTED)
            text.append(fitted(row.value, width - indent) + "\n", row.style)
        text.rstrip()
        self._text.update(text)
