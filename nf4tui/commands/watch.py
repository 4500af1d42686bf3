"""nf4tui watch: the dashboard over a run of any process on a terminal, its lines elsewhere. It only reads."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nf4tui.errors import InputError, TrainingFailedError

if TYPE_CHECKING:
    from nf4tui.runs.directory import RunDirectory

POLL_SECONDS = 0.25
START_SECONDS = 10.0  # a run is begun a moment before its trainer reports; one that does not is dead


def run(run_dir: str) -> int:
    """Follows the run until it ends or its viewer leaves. Returns 0, on a terminal also what run_dashboard
    returns. Raises InputError where there is no run, TrainingFailedError where it failed or crashed."""
    from nf4tui.dashboard.gate import can_show
    from nf4tui.runs.directory import find_run

    try:
        found = find_run(Path(run_dir))
    except (RuntimeError, OSError) as error:
        raise InputError(f"{run_dir}: cannot be read ({error})") from None
    if can_show(sys.stdin, sys.stdout, sys.stderr):
        from nf4tui.dashboard.app import run_dashboard

        return run_dashboard(found.path)
    return follow(found)


def follow(run: "RunDirectory") -> int:
    """Prints the run's lines, those so far and those to come, until its trainer has ended."""
    from nf4tui.config import terminal_is_dumb
    from nf4tui.dashboard.reader import RunReader
    from nf4tui.headless import Headless
    from nf4tui.runs.events import ErrorEvent

    reader = RunReader(run, None)
    shown = Headless(sys.stdout, as_json=False, bar=sys.stdout.isatty() and not terminal_is_dumb())
    failure = f"{run.path}: the run failed; its log.txt may say why"
    began = time.monotonic()
    while True:
        reading = reader.read()
        for event in reading.events:
            shown.show(event)
            failure = event.message if isinstance(event, ErrorEvent) else failure
        match reading.condition.state:
            case "done" | "stopped":
                return 0
            case "failed":
                raise TrainingFailedError(failure)
            case "crashed":
                advice = f"`nf4tui train --resume --out {run.path}` goes on from its last checkpoint"
                raise TrainingFailedError(f"{run.path}: the trainer is gone without a word; {advice}")
            case "starting" if time.monotonic() - began > START_SECONDS:
                raise InputError(f"{run.path}: nothing trains here; `nf4tui train --resume` begins it")
        time.sleep(POLL_SECONDS)
