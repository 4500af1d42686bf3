"""events.jsonl on disk: appended by one trainer, read by anyone while it grows.

A trainer may die in the middle of a line. Its successor cuts the torn line off before it appends, and
readers take complete lines only, so nobody ever sees a half event.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from nf4tui.errors import InputError
from nf4tui.runs.events import Event, LogEvent, parse, to_line

_BLOCK = 1 << 20


class EventLog:
    """Appends events to a file, one flushed line each. Opening mends a torn last line."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be opened, or is a symlink."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        complete = _complete_bytes(self._fd)
        if complete < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, complete)

    def append(self, event: Event) -> None:
        """Writes one line. Raises OSError, for example when the disk is full."""
        line = to_line(event).encode()
        while line:
            line = line[os.write(self._fd, line) :]

    def sync(self) -> None:
        """Waits until everything appended is on disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EventTail:
    """Reads a growing events.jsonl: each `read` returns the events completed since the last one.

    A line that is no event becomes a warning that names its number, so that nothing is hidden and nothing
    stops a viewer. A file replaced by a shorter one is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0

    def read(self) -> list[Event]:
        """New events, oldest first; empty while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = self._lines = 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return list(self._events(complete))

    def _events(self, lines: bytes) -> Iterator[Event]:
        # Split on 0x0A only: str.splitlines would also cut at U+2028 and its like.
        for line in lines.split(b"\n")[:-1]:
            self._lines += 1
            try:
                yield parse(line)
            except InputError as error:
                yield LogEvent(level="warning", message=f"{self._path.name}:{self._lines}: {error}")


def read_events(path: Path) -> list[Event]:
    """All complete events of a file, oldest first; empty where there is no file."""
    return EventTail(path).read()


def _complete_bytes(fd: int) -> int:
    """Length of the file up to and with its last newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
