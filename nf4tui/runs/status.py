"""status.json: who trains a run and whether that process still lives. Replaced whole, so never half read."""

import dataclasses
import json
import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nf4tui.runs import durable
from nf4tui.runs.events import now

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0  # a heartbeat older than this counts as none


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """state: running | paused | stopping, then stopped | finished | failed. Times are as in events."""

    pid: int
    host: str
    started: str
    state: str
    heartbeat: str

    @property
    def ended(self) -> bool:
        """Whether the trainer itself said that it is over."""
        return self.state in ("stopped", "finished", "failed")

    def crashed(self) -> bool:
        """Not ended, no heartbeat, and the process gone (where it is a process of this machine)."""
        silence = datetime.now(UTC) - datetime.fromisoformat(self.heartbeat)
        silent = silence.total_seconds() > SILENCE_SECONDS
        return not self.ended and silent and not (self.host == platform.node() and _exists(self.pid))


def read_status(path: Path) -> Status | None:
    """None where there is no readable status: the trainer has not begun."""
    try:
        values = json.loads(path.read_bytes())
        return Status(**{field.name: values[field.name] for field in dataclasses.fields(Status)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class StatusFile:
    """This process's status.json. `beat` may be called as often as one likes: it writes once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = now()
        self._state = "running"
        self._written = 0.0
        self._write()

    def set_state(self, state: str) -> None:
        self._state = state
        self._write()

    def beat(self) -> None:
        if time.monotonic() - self._written >= BEAT_SECONDS:
            self._write()

    def _write(self) -> None:
        status = Status(
            pid=os.getpid(), host=platform.node(), started=self._started, state=self._state, heartbeat=now()
        )
        data = json.dumps(dataclasses.asdict(status), indent=2) + "\n"
        durable.write_file(self._path, data.encode(), durable=status.ended)
        self._written = time.monotonic()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
