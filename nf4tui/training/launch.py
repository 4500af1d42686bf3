"""Starts training in a process of its own (worker.py) and waits until it is under way.

The worker has its own session and no terminal, so that closing this one costs no step. What can be refused
is refused here, in one line, before a dashboard opens.
"""

import json
import subprocess
import sys
from typing import Any

from nf4tui.config import TrainConfig
from nf4tui.errors import CannotRunError, InputError, Nf4tuiError, TrainingFailedError
from nf4tui.runs.settings import to_toml

Worker = subprocess.Popen[bytes]


def start_worker(config: TrainConfig, *, resume: bool, explicit: frozenset[str]) -> Worker | None:
    """The worker, once it trains; None where the run was finished already, which is said on stdout.

    Raises what the worker raised while it prepared, with the same exit code.
    """
    request = {"settings": to_toml(config), "resume": resume, "explicit": sorted(explicit)}
    # -P: a folder named nf4tui or numpy where the user stands must not be imported.
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "nf4tui.training.worker", config.out],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        reply = _ask(worker, request)
    except BaseException:
        worker.terminate()
        raise
    if reply is None:
        raise TrainingFailedError(f"the training process ended with {worker.wait()} before its first step")
    if "error" in reply:
        worker.wait()
        raise _error(reply["exit_code"], reply["error"])
    if "ended" in reply:
        worker.wait()
        sys.stdout.write("".join(f"{line}\n" for line in reply["ended"]))
        return None
    return worker


def _ask(worker: Worker, request: dict[str, Any]) -> dict[str, Any] | None:
    """Sends the request; returns the reply, or None where the worker died without one."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        with worker.stdin as stdin:
            stdin.write(json.dumps(request).encode())
    except BrokenPipeError:
        return None
    with worker.stdout as stdout:
        line = stdout.readline()
    reply: dict[str, Any] | None = json.loads(line) if line else None
    return reply


def _error(exit_code: int, message: str) -> Nf4tuiError:
    kinds = (InputError, CannotRunError, TrainingFailedError)
    return next((kind for kind in kinds if kind.exit_code == exit_code), Nf4tuiError)(message)
