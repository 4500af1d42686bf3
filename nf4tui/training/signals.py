"""SIGINT, SIGTERM and SIGHUP: the first one asks the loop to stop after a checkpoint, a second SIGINT ends
the process at once. That is safe at any moment: nothing in a run directory is ever half written."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

CHECKPOINT_THEN_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """received: the first of the signals that came, or None. A closed standard output counts as SIGHUP.
    begun: whether there is a run to stop; before, any signal ends the process, and nothing was written."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.begun = False

    def request(self, received: signal.Signals) -> None:
        """Asks the loop to stop after a checkpoint."""
        if self.received is None:
            self.received = received

    def handle(self, number: int, frame: FrameType | None) -> None:
        second_interrupt = number == signal.SIGINT and self.received == signal.SIGINT
        if second_interrupt or not self.begun:
            os._exit(128 + number)
        self.request(signal.Signals(number))


@contextmanager
def caught(signals: StopSignals, *, hang_up: bool = True) -> Iterator[None]:
    """Routes the signals to `signals` while the block runs. Only for a process's main thread.

    hang_up: whether SIGHUP stops the run; if not, or if the process was started by nohup, it is ignored.
    """
    handlers: dict[signal.Signals, Any] = dict.fromkeys(CHECKPOINT_THEN_STOP, signals.handle)
    if not hang_up or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        handlers[signal.SIGHUP] = signal.SIG_IGN
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
