"""What every key does, read off the table of keys."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from nf4tui.dashboard.chart import BELOW, GAP, POINT, RESUMED
from nf4tui.dashboard.keys import COMMANDS, KEYS
from nf4tui.dashboard.palette import MUTED, SKY

_LEGEND = (
    (GAP, "a step that was not finite; never drawn as a number"),
    (BELOW, "not positive, so below a logarithmic axis"),
    (RESUMED, "resumed from a checkpoint"),
    (POINT, "a single measurement of a curve that has few"),
)


class HelpScreen(ModalScreen[None]):
    """commands: whether this viewer may send words to the trainer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter,ctrl+c,ctrl+q", "dismiss", "close")
    ]

    def __init__(self, *, commands: bool) -> None:
        super().__init__()
        self._commands = commands

    def compose(self) -> ComposeResult:
        text = Text()
        for key in KEYS:
            if self._commands or key.action not in COMMANDS:
                text.append(f"{key.shown:>12}  ", f"bold {SKY}")
                text.append(f"{key.explained}\n")
        text.append("\n")
        for mark, meaning in _LEGEND:
            text.append(f"{mark:>12}  ", "bold")
            text.append(f"{meaning}\n", MUTED)
        text.rstrip()
        with VerticalScroll(id="dialog") as dialog:
            dialog.border_title = Content("Keys")
            yield Static(text)
