"""How a run is doing right now, from what its trainer says and from whether that process lives."""

from dataclasses import dataclass
from datetime import UTC, datetime

from nf4tui.runs.status import SILENCE_SECONDS, Status

# In words and in a symbol each, so that nothing hangs on colour.
SYMBOLS = {
    "starting": "◌",
    "running": "●",
    "paused": "‖",
    "stopping": "◍",
    "stopped": "■",
    "done": "✓",
    "failed": "✗",
    "crashed": "✗",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """state: a key of SYMBOLS. silent_seconds: age of the heartbeat, where it is a living trainer's."""

    state: str
    silent_seconds: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether there is a trainer that hears words."""
        return self.state in ("running", "paused", "stopping")

    @property
    def silent(self) -> bool:
        """A living trainer that has not said so for a while: a long step, or a stuck one."""
        return self.alive and self.silent_seconds > SILENCE_SECONDS


def condition(status: Status | None, worker_exit: int | None) -> Condition:
    """worker_exit: the exit status of the trainer if it was a child of ours and has ended.

    A child that ended is reaped by who asks for its exit status, so it is known to be gone at once; of any
    other trainer it shows by a heartbeat that stopped and a pid that is no more.
    """
    if status is None:
        return Condition("starting" if worker_exit is None else "crashed")
    if status.ended:
        return Condition("done" if status.state == "finished" else status.state)
    try:
        if worker_exit is not None or status.crashed():
            return Condition("crashed")
        age = datetime.now(UTC) - datetime.fromisoformat(status.heartbeat)
    except (TypeError, ValueError):  # a status.json that no trainer of ours wrote
        return Condition("starting")
    known = status.state in ("running", "paused", "stopping")
    return Condition(status.state if known else "running", age.total_seconds())
