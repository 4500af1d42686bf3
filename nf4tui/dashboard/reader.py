"""The dashboard's only contact with a run: its directory is read, and words are dropped into it.

Reading happens in a thread, so that a slow disk does not stop the screen.
"""

import subprocess
from dataclasses import dataclass

from nf4tui.dashboard.condition import Condition, condition
from nf4tui.errors import InputError
from nf4tui.runs import control
from nf4tui.runs.control import Word
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.event_log import EventTail
from nf4tui.runs.events import Event
from nf4tui.runs.settings import read_settings
from nf4tui.runs.status import Status, read_status


@dataclass(frozen=True, slots=True)
class Reading:
    """What is new since the last reading, and how the run is doing."""

    events: list[Event]
    status: Status | None
    condition: Condition


class RunReader:
    """Reads a run directory. worker: the trainer, where it is our child; without one there are no words."""

    def __init__(self, run: RunDirectory, worker: "subprocess.Popen[bytes] | None") -> None:
        self.run = run
        self._worker = worker
        self._tail = EventTail(run.events)

    @property
    def commands(self) -> bool:
        """Whether words may be sent: a viewer who did not start the run only looks."""
        return self._worker is not None

    @property
    def worker_exit(self) -> int | None:
        """Exit status of the trainer as a shell has it, where it is our child and has ended."""
        code = None if self._worker is None else self._worker.poll()
        return code if code is None or code >= 0 else 128 - code

    def read(self) -> Reading:
        """Blocks for as long as the disk does. Raises InputError where the events cannot be read."""
        # Whether it ended is asked first: what it wrote before is then there to be read.
        ended = self.worker_exit
        status = read_status(self.run.status)
        state = condition(status, ended)
        try:
            return Reading(self._tail.read(), status, state)
        except OSError as error:
            raise InputError(f"{self.run.events}: cannot be read ({error.strerror})") from None

    def send(self, word: Word) -> None:
        """Raises InputError where the word cannot be left."""
        control.send(self.run.control, word)

    def settings(self) -> dict[str, str]:
        """A few settings of the run, as words for the screen; why they are missing where they cannot be
        read."""
        try:
            config = read_settings(self.run.config)
        except InputError as error:
            return {"settings": str(error)}
        lora = config.lora
        targets = "all projections" if len(config.targets) == 7 else ", ".join(config.targets)
        accumulated = "" if config.grad_accum == 1 else f" x {config.grad_accum}"
        return {
            "model": config.model,
            "data": ", ".join(config.data),
            "lora": f"rank {lora.rank}, alpha {lora.alpha:g}{', rsLoRA' if lora.rslora else ''}",
            "on": targets,
            "batch": f"{config.batch_size}{accumulated} rows of {config.max_seq_len}"
            f"{', packed' if config.packing else ''}",
            "schedule": config.schedule,
            "seed": str(config.seed),
        }
