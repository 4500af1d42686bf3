"""Runs a piece of a stranger's program (a template, a regular expression) where it can do no harm.

A module is run as a child process with limits on its processor time, its memory and its core dumps. It gets
one JSON value and gives one back; `serve` is the child's side of it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 2**29  # bytes of address space
SECONDS = 5  # of processor time; of wall time four times as many


class IsolatedError(ValueError):
    """The child needs too much time or memory; the message says so, in one line."""


def run_isolated(module: str, request: Any, *, seconds: int = SECONDS) -> Any:
    """What `python -m module`, which calls `serve`, answers to `request`. Raises IsolatedError."""
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-m", module],
            input=json.dumps({"request": request, "seconds": seconds}).encode(),
            capture_output=True,
            timeout=4 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise IsolatedError("it took too long to run") from None
    if child.returncode != 0:
        raise IsolatedError("its run was ended: it needs too much time or memory")
    return json.loads(child.stdout)


def serve(answer: Callable[[Any], Any]) -> None:
    """The child: sets the limits, then answers the one request on standard input."""
    import resource  # noqa: PLC0415 (the child's alone)

    message = json.load(sys.stdin.buffer)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (message["seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(answer(message["request"]), sys.stdout)
