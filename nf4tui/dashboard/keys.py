"""The one table of keys: it drives what a key does, what the footer shows and what `?` explains."""

from dataclasses import dataclass

from textual.binding import Binding

PANES = ("loss", "learning-rate", "grad-norm", "throughput", "precision", "now", "run", "log")
PANE_TITLES = ("loss", "lr", "grad norm", "tokens/s", "precision", "now", "run", "log")
MAX_FOOTER = 6


@dataclass(frozen=True, slots=True)
class Key:
    """keys: as Textual names them, with commas between. shown: as people name them. action: of the main
    screen. explained: in the help. footer: the label there; empty leaves it out."""

    keys: str
    shown: str
    action: str
    explained: str
    footer: str = ""

    def binding(self) -> Binding:
        return Binding(
            self.keys, self.action, self.footer, show=bool(self.footer), key_display=self.shown.split(",")[0]
        )


KEYS = (
    Key("p", "p", "pause", "pause after this step, or go on", "pause/resume"),
    Key("c", "c", "checkpoint", "save a checkpoint after this step", "checkpoint"),
    Key("s", "s", "stop", "stop after this step, with a checkpoint; asks first", "stop"),
    Key("y", "y", "log_axis", "logarithmic axis of the chart in focus, else of the loss", "log axis"),
    Key("question_mark", "?", "help", "these keys", "help"),
    Key("q,ctrl+c,ctrl+q", "q, ctrl+c", "leave", "leave; asks while a run of yours goes on", "quit"),
    *(
        Key(str(number), str(number), f"pane({number})", f"to the pane: {title}")
        for number, title in enumerate(PANE_TITLES, start=1)
    ),
    Key("tab", "tab", "next_pane(1)", "to the next pane"),
    Key("shift+tab", "shift+tab", "next_pane(-1)", "to the pane before"),
    Key("z", "z", "zoom", "the pane in focus alone, or all of them"),
    Key("w", "w", "window", "charts over all steps, the last 1,000 or the last 100"),
)
COMMANDS = frozenset({"pause", "checkpoint", "stop"})  # need a trainer of ours that lives
