"""A run directory: where its parts lie, and how one is begun, taken up again and locked.

Beginning is a sequence that may die anywhere: the folder, `lock`, then config.toml by rename. Until
config.toml is there the run does not exist, and beginning it again is allowed; nothing else in the folder
may be anybody's but ours, so no file of the user is ever overwritten.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.runs import control, durable
from nf4tui.runs.lock import RunLock
from nf4tui.runs.settings import to_toml


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The parts of a run by name. Opening checks nothing; see begin, take_up and find_run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"


def run_at(out: str) -> RunDirectory:
    """The run directory that --out names, `~` expanded, absolute. Raises InputError for odd names."""
    if not out or any(ord(character) < 0x20 or ord(character) == 0x7F for character in out):
        raise InputError(f"--out {out!r}: must be a path without control characters")
    try:
        out.encode("utf-8")
        path = Path(out).expanduser().absolute()
    except (UnicodeEncodeError, RuntimeError) as error:
        raise InputError(f"--out {out!r}: is not usable as a path ({error}); choose another") from None
    return RunDirectory(path)


def find_run(path: Path) -> RunDirectory:
    """An existing run, for readers. Raises InputError where `path` holds none."""
    run = RunDirectory(path.expanduser().absolute())
    if not run.config.is_file():
        raise InputError(f"{path}: is not a run directory (no config.toml in it)")
    for part in (run.status, run.events):
        # A FIFO or a device could keep a reader waiting for ever.
        if part.exists() and not (part.is_file() or part.is_dir()):
            raise InputError(f"{part}: is not a plain file; this is not a run directory of nf4tui")
    return run


def exists(run: RunDirectory) -> bool:
    """Whether a run was begun here. Raises InputError where its parts are no plain files."""
    _refuse_what_is_no_folder(run.path)
    for part in (run.config, run.status, run.events, run.log, run.lock):
        if os.path.lexists(part) and not stat.S_ISREG(part.lstat().st_mode):
            raise InputError(f"{part}: is not a plain file; this is not a run directory of nf4tui")
    for part in (run.control, run.checkpoints, run.adapter):
        if os.path.lexists(part) and not stat.S_ISDIR(part.lstat().st_mode):
            raise InputError(f"{part}: is not a folder; this is not a run directory of nf4tui")
    return run.config.exists()


def check_free(run: RunDirectory) -> None:
    """Raises InputError unless a new run may begin here. Writes nothing."""
    if exists(run):
        raise InputError(f"{run.path}: a run exists here; go on with it by --resume, or name another --out")
    try:
        foreign = _foreign(run)
        parent = next(folder for folder in (run.path, *run.path.parents) if os.path.lexists(folder))
    except OSError as error:
        raise InputError(f"{run.path}: cannot be used ({error.strerror}); name another --out") from None
    if foreign is not None:
        raise InputError(f"{run.path}: is not empty (it holds {foreign}); name another folder with --out")
    if not parent.is_dir():
        what = "is a file" if parent.exists() else "is a link to nowhere"
        raise InputError(f"{parent}: {what}, so {run.path} cannot be made; name another --out")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{parent}: cannot be written; name another --out")


@contextmanager
def begin(run: RunDirectory, config: TrainConfig) -> Iterator[None]:
    """Begins a run and holds its lock. Raises InputError where it exists or cannot be written."""
    settings = to_toml(config).encode()
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(run.lock)
    except OSError as error:
        raise InputError(f"{run.path}: cannot be made ({error.strerror}); name another --out") from None
    with lock:
        check_free(run)
        try:
            durable.write_file(run.config, settings)
            _make_folders(run)
        except OSError as error:
            raise InputError(f"{run.path}: cannot be written ({error.strerror})") from None
        yield


@contextmanager
def take_up(run: RunDirectory) -> Iterator[None]:
    """Holds the lock of an existing run, with what its last trainer left half done cleaned up.

    Raises InputError where another process trains it, or it cannot be written.
    """
    try:
        lock = RunLock(run.lock)
    except OSError as error:
        raise InputError(f"{run.lock}: cannot be opened ({error.strerror})") from None
    with lock:
        try:
            _make_folders(run)
            durable.remove_temporaries(run.path)
            durable.remove_temporaries(run.checkpoints)
            control.take(run.control)  # words to a trainer that is gone
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be written ({error.strerror})") from None
        yield


def _make_folders(run: RunDirectory) -> None:
    run.control.mkdir(exist_ok=True)
    run.checkpoints.mkdir(exist_ok=True)


def _refuse_what_is_no_folder(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{path}: cannot be used ({error.strerror}); name another --out") from None
    if stat.S_ISLNK(mode):
        raise InputError(f"{path}: is a symbolic link; name the folder itself with --out")
    if not stat.S_ISDIR(mode):
        raise InputError(f"{path}: is in the way (not a folder); name another --out")


def _foreign(run: RunDirectory) -> str | None:
    """A name in the folder that an unfinished `begin` does not explain, if there is one."""
    if not run.path.exists():
        return None
    for path in sorted(run.path.iterdir()):
        if path == run.lock and (path.stat().st_size == 0 or path.read_bytes().strip().isdigit()):
            continue
        if path.name != f"{durable.TEMPORARY}{run.config.name}":
            return path.name
    return None
