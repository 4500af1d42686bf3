"""Textual's terminal driver, made safe against a terminal that goes away.

As it comes, its writer thread dies with the first failed write, after which the next writes fill a bounded
queue and block the event loop for ever, and its reader thread prints a traceback.
"""

from collections.abc import Callable
from typing import IO, Any

from textual.drivers.linux_driver import LinuxDriver


class HangUpDriver(LinuxDriver):
    """Calls the app's `hang_up` once the terminal is gone, and lets further output go nowhere."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._hang_up: Callable[[], None] = app.hang_up
        self._file: Any = _Output(self._file, self._gone)

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            self._gone()

    def _gone(self) -> None:
        self._app.call_later(self._hang_up)


class _Output:
    """A text file whose failed writes are reported once and otherwise forgotten."""

    def __init__(self, file: IO[str], gone: Callable[[], None]) -> None:
        self._file = file
        self._gone: Callable[[], None] | None = gone

    def write(self, text: str) -> None:
        self._attempt(lambda: self._file.write(text))

    def flush(self) -> None:
        self._attempt(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def _attempt(self, output: Callable[[], object]) -> None:
        if self._gone is None:
            return
        try:
            output()
        except OSError:
            report, self._gone = self._gone, None
            report()
