"""The question on the way out while a trainer goes on: detach, stop and save, or stay."""

import shlex
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from nf4tui.dashboard.palette import MUTED
from nf4tui.dashboard.text import fitted

DETACH, STOP, CANCEL = "detach", "stop", "cancel"
_PATH_CELLS = 34


class QuitScreen(ModalScreen[str]):
    """Returns DETACH, STOP or CANCEL. A second ctrl+c detaches: it costs no step."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", f"choose('{CANCEL}')", "cancel"),
        Binding("d,ctrl+c,ctrl+q", f"choose('{DETACH}')", "detach"),
        Binding("s", f"choose('{STOP}')", "stop and save"),
    ]

    def __init__(self, run_path: str, *, default: str = DETACH) -> None:
        """default: the choice that enter makes."""
        super().__init__()
        self._path = run_path
        self._default = default

    def compose(self) -> ComposeResult:
        command = f"nf4tui watch {fitted(shlex.quote(self._path), _PATH_CELLS)}"
        choices = (
            (DETACH, "d", "Detach", f"training goes on; {command} comes back"),
            (STOP, "s", "Stop and save", "a checkpoint after this step; train --resume goes on from it"),
            (CANCEL, "esc", "Cancel", "stay here"),
        )
        with Vertical(id="dialog") as dialog:
            dialog.border_title = Content("Training is going on")
            yield Static(Text("Leave the dashboard?"))
            yield OptionList(
                *(
                    Option(
                        Text.assemble((f"{name:<16}", "bold"), (f"{key}\n", MUTED), (hint, MUTED)), id=choice
                    )
                    for choice, key, name, hint in choices
                )
            )

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = options.get_option_index(self._default)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id or CANCEL)

    def action_choose(self, choice: str) -> None:
        self.dismiss(choice)
