"""A child process on a pseudo-terminal of its own: keys in, bytes out."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from types import TracebackType

TIMEOUT = 20.0


def _on_terminal() -> None:
    """Makes the pseudo-terminal on standard input the controlling one."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """Runs a command line as the leader of a session on a terminal of `size` (columns, rows).

    controlling: whether the terminal is the session's own, so that its end comes with a SIGHUP.
    """

    def __init__(
        self,
        line: list[str],
        size: tuple[int, int] = (120, 40),
        *,
        controlling: bool = True,
        **environment: str,
    ) -> None:
        self.master, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
        self.process = subprocess.Popen(
            line,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_on_terminal if controlling else None,  # noqa: PLW1509 - it only makes a system call
            env={
                **kept,
                "TERM": "xterm-256color",
                "COLUMNS": str(size[0]),
                "LINES": str(size[1]),
                **environment,
            },
        )
        os.close(child)
        self.output = b""

    def read_until(self, found: Callable[[bytes], bool], timeout: float = TIMEOUT) -> bytes:
        """Everything shown so far, once `found` holds of it. Fails after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not found(self.output):
            assert time.monotonic() < end, self.output[-3000:]
            if not self._read(0.1) and self.process.poll() is not None:
                assert found(self.output), self.output[-3000:]
        return self.output

    def wait_for(self, text: str) -> bytes:
        return self.read_until(lambda output: text.encode() in output)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def finish(self, timeout: float = TIMEOUT) -> int:
        """The exit status, all output read."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < end, self.output[-3000:]
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def hang_up(self) -> None:
        """The terminal goes away, as with a lost connection."""
        os.close(self.master)
        self.master = -1

    def _read(self, seconds: float) -> bool:
        """Whether there was anything."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the child has closed its side
            return False
        self.output += data
        return bool(data)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.master >= 0:
            os.close(self.master)


def watch(folder: object) -> list[str]:
    """The command line of nf4tui watch."""
    return [sys.executable, "-m", "nf4tui", "watch", str(folder)]


def modes(terminal: int) -> list[object]:
    """The terminal's modes: echo, line editing, flow control."""
    return termios.tcgetattr(terminal)[:4]
