"""Training in a process of its own, in its own session.

    python -m nf4tui.training.worker RUN_DIR      stdin: one JSON request; stdout: one JSON reply
Started by launch.py, which waits for the reply: `started` once the run is recorded, `ended` where there was
nothing to train, or the error. From then on the two share only the run directory, and the worker's own
output goes to log.txt.
"""

import json
import os
import sys
from contextlib import closing
from typing import Any

from nf4tui.errors import Nf4tuiError
from nf4tui.headless import log_line
from nf4tui.runs.directory import RunDirectory, run_at
from nf4tui.runs.events import Event, StartEvent
from nf4tui.runs.settings import parse_settings
from nf4tui.training.session import attempt, exit_code
from nf4tui.training.signals import StopSignals, caught


def main() -> int:
    """Carries out the request; the attempt records itself. Returns the exit code."""
    request = json.loads(sys.stdin.buffer.read())
    config = parse_settings(request["settings"], "request")
    signals = StopSignals()
    last: Event | None = None
    started = False
    before_start = []
    attempted = attempt(
        config, resume=request["resume"], explicit=frozenset(request["explicit"]), signals=signals
    )
    try:
        with caught(signals, hang_up=False), closing(attempted) as events:
            for last in events:
                if isinstance(last, StartEvent):
                    started = True
                    _reply({"started": True})
                    _output_to(run_at(config.out))
                elif not started:
                    before_start.append(log_line(last))
    except Nf4tuiError as error:
        if not started:
            _reply({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    if not started:
        _reply({"ended": before_start})
    return exit_code(last, signals)


def _reply(values: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(values).encode() + b"\n")
    except BrokenPipeError:
        # The starter is gone; the run does not depend on it.
        return


def _output_to(run: RunDirectory) -> None:
    """Standard output and error into log.txt: the terminal belongs to the dashboard now."""
    log = os.open(run.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
