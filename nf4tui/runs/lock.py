"""One trainer a run: an flock on RUN/lock, which the kernel lets go of however its holder dies."""

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from nf4tui.errors import CannotRunError, InputError


class RunLock:
    """Holds RUN/lock until closed, and writes the holder's pid into it."""

    def __init__(self, path: Path) -> None:
        """Raises InputError where another process trains this run, CannotRunError without file locks."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise CannotRunError(
                    f"{path}: this file system has no file locks ({error.strerror}); put the run elsewhere"
                ) from None
            raise InputError(
                f"{path.parent}: is being trained by process {holder or '?'};"
                f" follow it with `nf4tui watch {path.parent}`, or stop it first"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
