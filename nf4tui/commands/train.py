"""nf4tui train: the dashboard over a worker process on a terminal, plain lines in this process elsewhere."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs, so that the command line starts fast.

import os
import signal
import sys
from contextlib import closing

from nf4tui.config import TrainConfig, terminal_is_dumb
from nf4tui.errors import Nf4tuiError


def run(config: TrainConfig, *, resume: bool, no_tui: bool, as_json: bool, explicit: frozenset[str]) -> int:
    """Trains. `explicit`: the settings that the user named; with `resume` the others come from the run.

    Returns 0, or 130, 143 or 129 where a signal stopped the run after a checkpoint. Raises Nf4tuiError.
    """
    if no_tui or as_json or terminal_is_dumb() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _headless(config, resume=resume, as_json=as_json, explicit=explicit)
    from nf4tui.dashboard.app import run_dashboard
    from nf4tui.runs.directory import run_at
    from nf4tui.training.launch import start_worker

    worker = start_worker(config, resume=resume, explicit=explicit)
    return 0 if worker is None else run_dashboard(run_at(config.out).path, worker=worker)


def _headless(config: TrainConfig, *, resume: bool, as_json: bool, explicit: frozenset[str]) -> int:
    from nf4tui.headless import Headless
    from nf4tui.runs.events import ErrorEvent, Event
    from nf4tui.training.session import attempt, exit_code
    from nf4tui.training.signals import StopSignals, caught

    signals = StopSignals()
    bar = sys.stdout.isatty() and not terminal_is_dumb()
    shown: Headless | None = Headless(sys.stdout, as_json=as_json, bar=bar)
    last: Event | None = None
    with (
        caught(signals),
        closing(attempt(config, resume=resume, explicit=explicit, signals=signals)) as events,
    ):
        try:
            for last in events:
                try:
                    if shown is not None:
                        shown.show(last)
                except OSError as error:
                    shown = None
                    _output_closed(error)
                    signals.request(signal.SIGHUP)
        except Nf4tuiError as error:
            if as_json and shown is not None and not isinstance(last, ErrorEvent):
                shown.show(ErrorEvent(message=str(error)))
            raise
    return exit_code(last, signals)


def _output_closed(error: OSError) -> None:
    """Says so on standard error, and lets what Python still holds for standard output go nowhere."""
    sys.stderr.write(f"standard output: {error.strerror}; stopping after a checkpoint (--resume goes on)\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
