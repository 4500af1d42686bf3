"""The dashboard as a program: opens the screen, restores the terminal whatever ends it, knows how to end.

It reads a run directory and drops words into it, and has nothing else to do with training: closing it,
killing it or losing its terminal costs no step.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from textual.app import App
from textual.worker import WorkerFailed

from nf4tui.config import terminal_facts
from nf4tui.dashboard.driver import HangUpDriver
from nf4tui.dashboard.main_screen import MainScreen
from nf4tui.dashboard.palette import THEME
from nf4tui.dashboard.reader import RunReader
from nf4tui.errors import TrainingFailedError
from nf4tui.runs.directory import RunDirectory
from nf4tui.sanitize import one_line

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DashboardApp(App[None], inherit_bindings=False):
    """signalled: the signal that ended it, a hang-up of the terminal included. fault: an error of its own."""

    CSS_PATH = "dashboard.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-medium"), (120, "-wide")]  # noqa: RUF012 - as declared

    def __init__(self, reader: RunReader) -> None:
        # Without colour the terminal's own colours are kept, where Textual would go on in greys.
        super().__init__(driver_class=HangUpDriver, ansi_color=bool(terminal_facts()["NO_COLOR"]) or None)
        self.register_theme(THEME)
        self.theme = THEME.name
        self.main = MainScreen(reader)
        self.signalled: signal.Signals | None = None
        self.fault: Exception | None = None

    def get_default_screen(self) -> MainScreen:
        return self.main

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end, number)

    def on_unmount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def hang_up(self) -> None:
        """The terminal is gone."""
        self._end(signal.SIGHUP)

    def _end(self, number: signal.Signals) -> None:
        if self.signalled is None:
            self.signalled = number
            self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """Leaves the screen and keeps the error for run_dashboard, where Textual would print its locals."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.fault = self.fault or (cause if isinstance(cause, Exception) else error)
        super()._handle_exception(error)
        self._exit_renderables.clear()


def run_dashboard(run_dir: Path, *, worker: "subprocess.Popen[bytes] | None" = None) -> int:
    """Shows the run until its viewer leaves; then says on standard output how the run is.

    worker: the trainer, where this process started it; without it the dashboard only looks. Returns 0 after
    detaching and for a finished run, the trainer's own exit code where it ended otherwise, 4 for a failed
    run of others, and 128 + the signal that ended the dashboard.
    """
    reader = RunReader(RunDirectory(run_dir), worker)
    app = DashboardApp(reader)
    app.run()
    if app.fault is not None:
        raise app.fault
    if app.signalled is not None:
        if app.signalled == signal.SIGHUP:
            _let_output_go()
        return 128 + app.signalled
    sys.stdout.write(f"{one_line(_last_word(app, reader))}\n")
    return _exit_code(app, reader)


def _exit_code(app: DashboardApp, reader: RunReader) -> int:
    condition = app.main.condition
    if condition.alive:
        return 0
    if reader.worker_exit is not None:
        return reader.worker_exit
    return TrainingFailedError.exit_code if condition.state in ("failed", "crashed") else 0


def _last_word(app: DashboardApp, reader: RunReader) -> str:
    """One line on how the run was when the dashboard was left."""
    path, history = shlex.quote(str(reader.run.path)), app.main.history
    match app.main.condition.state:
        case "done" if history.done is not None:
            return f"done: the adapter is in {history.done.adapter}"
        case "failed" if history.error is not None:
            return f"failed: {history.error.message}"
        case "crashed":
            return f"crashed: the trainer is gone; nf4tui train --resume --out {path} goes on"
        case "stopped":
            return f"stopped after step {history.steps_taken}; nf4tui train --resume --out {path} goes on"
        case _:
            return f"training goes on; nf4tui watch {path} comes back to it"


def _let_output_go() -> None:
    """What Python still holds for a terminal that is gone goes nowhere, so that exiting says nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)
