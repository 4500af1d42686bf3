"""Ctrl-C while a person talks with a model."""

import contextlib
import signal
from collections.abc import Iterator


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt where it is allowed to, once, and does nothing elsewhere: it ends an
    answer or a line, whatever moment it comes at, and never the program."""

    def __init__(self) -> None:
        self._allowed = False

    def install(self) -> None:
        """From now on. (A program that is not talking on a terminal ends at Ctrl-C, as programs do.)"""
        signal.signal(signal.SIGINT, self._handle)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Where Ctrl-C raises."""
        self._allowed = True
        try:
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, frame: object) -> None:
        if self._allowed:
            self._allowed = False
            raise KeyboardInterrupt
