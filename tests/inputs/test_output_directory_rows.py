"""What `--out` may name, and what happens to a run when its disk does not hold it: one line, and nobody's file
is ever overwritten."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nf4tui.runs import durable
from nf4tui.runs.event_log import EventLog

Run = Callable[..., Any]
NOBODY = 65534


def test_what_nothing_is_wrong_with_becomes_a_run(place: Path, nf4tui: Run, train: Run) -> None:
    """Else the refusals below would say nothing."""
    (place / "empty").mkdir()
    for out in ("run", "deep/er/run", "with spaces", "empty", "ünï 機", "a" * 200):
        found = nf4tui(*train(out=out))
        assert (found.code, found.err) == (0, "")
        assert (place / out / "adapter/adapter_model.safetensors").is_file()


def make_run(path: Path) -> None:
    path.mkdir()
    (path / "config.toml").write_text("# a run\n", encoding="utf-8")
    (path / "events.jsonl").write_text("{}\n", encoding="utf-8")


def make_foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("mine", encoding="utf-8")


def make_foreign_lock(path: Path) -> None:
    path.mkdir()
    (path / "lock").write_text("mine", encoding="utf-8")


def make_foreign_adapter(path: Path) -> None:
    (path / "adapter").mkdir(parents=True)
    (path / "adapter/adapter_model.safetensors").write_text("mine", encoding="utf-8")


def make_hidden(path: Path) -> None:
    path.mkdir()
    (path / ".git").mkdir()


def make_file(path: Path) -> None:
    path.write_text("mine", encoding="utf-8")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def make_link(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_run_with_linked_log(path: Path) -> None:
    make_run(path)
    path.with_name("precious").write_text("mine", encoding="utf-8")
    (path / "log.txt").symlink_to("../precious")


def make_run_with_fifo(path: Path) -> None:
    make_run(path)
    (path / "events.jsonl").unlink()
    os.mkfifo(path / "events.jsonl")


IN_THE_WAY = [
    (make_run, "run: a run exists here; go on with it by --resume, or name another --out"),
    (make_foreign, "run: is not empty (it holds thesis.txt); name another folder with --out"),
    (make_foreign_lock, "run: is not empty (it holds lock)"),
    (make_foreign_adapter, "run: is not empty (it holds adapter)"),
    (make_hidden, "run: is not empty (it holds .git)"),
    (make_file, "run: is in the way (not a folder)"),
    (make_fifo, "run: is in the way (not a folder)"),
    (make_dangling, "run: is a symbolic link"),
    (make_link, "run: is a symbolic link"),
    (make_loop, "run: is a symbolic link"),
    (make_device, "run: is a symbolic link"),
    (make_run_with_linked_log, "log.txt: is not a plain file; this is not a run directory of nf4tui"),
    (make_run_with_fifo, "events.jsonl: is not a plain file"),
]


@pytest.mark.parametrize(("make", "says"), IN_THE_WAY, ids=[make.__name__ for make, _ in IN_THE_WAY])
def test_what_is_there_already_is_refused_and_left_as_it_is(
    place: Path, refused: Run, train: Run, make: Callable[[Path], None], says: str
) -> None:
    make(place / "run")
    refused(*train(), says=(says,))
    if make is not make_run:
        refused(*train("--resume"))


@pytest.mark.parametrize("part", ["config.toml", "events.jsonl", "status.json"])
def test_a_run_that_nobody_could_finish_reading_is_not_watched(place: Path, refused: Run, part: str) -> None:
    make_run(place / "run")
    (place / "run" / part).unlink(missing_ok=True)
    os.mkfifo(place / "run" / part)
    refused("watch", "run", says=("run",))


@pytest.mark.parametrize(
    "make", [make_file, make_fifo, make_dangling, make_loop], ids=lambda make: make.__name__
)
def test_a_folder_under_what_is_no_folder_is_refused(
    place: Path, refused: Run, train: Run, make: Callable[[Path], None]
) -> None:
    make(place / "thing")
    refused(*train(out="thing/run"), says=("thing",))


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("", "--out"),
        ("a\nb", "'a\\nb': must be a path without control characters"),
        ("a\rb", "without control characters"),
        ("a\0b", "without control characters"),
        ("\x1b]0;x\x07", "without control characters"),
        ("a\x7f", "without control characters"),
        ("\udcff", "is not usable as a path"),
        ("caf\udce9/run", "is not usable as a path"),
        ("~nobody-of-that-name/run", "is not usable as a path"),
        ("a" * 300, "cannot be used (File name too long)"),
        ("a/" * 2500 + "run", "cannot be used (File name too long)"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(refused: Run, train: Run, out: str, says: str) -> None:
    line = refused(*train(out=out), says=(says,))
    assert len(line) < 12_000


def test_a_tilde_is_the_home_folder_for_every_path(
    place: Path, data: Path, model: Path, nf4tui: Run, train: Run
) -> None:
    home = place / "home"
    data.rename(home / "data.jsonl")
    model.rename(home / "model")
    found = nf4tui(*train(data=Path("~/data.jsonl"), model=Path("~/model"), out="~/a run"))
    assert (found.code, found.err) == (0, "")
    assert (home / "a run/adapter").is_dir() and not (place / "~").exists()


@pytest.mark.parametrize("what", ["data", "model", "eval_data"])
def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_written(
    place: Path, data: Path, model: Path, refused: Run, train: Run, what: str
) -> None:
    """A run's config.toml could not hold it."""
    odd = {"data": data, "model": model, "eval_data": data}[what].rename(place / "caf\udce9")
    words = {"data": train(data=odd), "model": train(model=odd), "eval_data": train("--eval-data", odd)}[what]
    refused(*words, says=(f"{what} ", "caf\\udce9': is not valid UTF-8; rename the file or folder"))


# Places and disks that do not take it.


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere; without its rights for a moment, and back."""
    if os.geteuid() != 0:
        yield
        return
    os.setresgid(NOBODY, NOBODY, 0)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that anybody may enter and nobody may write."""
    folder = Path(tempfile.mkdtemp(prefix="nf4tui-locked-"))
    (folder / "inner").mkdir(mode=0o555)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("out", ["run", "deep/er/run", "inner", "inner/run"])
def test_a_place_that_may_not_be_written_is_refused(
    locked: Path, nf4tui: Run, train: Run, refused: Run, out: str
) -> None:
    refused(*train(data=Path("gone")))  # imports what the command needs, which root alone may be able to read
    with as_nobody():
        found = nf4tui(*train(out=locked / out))
    asked = locked / "inner" if out.startswith("inner") else locked
    assert (found.code, found.out) == (2, "")
    assert found.err == f"nf4tui: error: {asked}: cannot be written; name another --out\n"
    assert sorted(locked.rglob("*")) == [locked / "inner"]


def limited(place: Path, words: list[Any], size: int) -> "subprocess.CompletedProcess[str]":
    """The command in a process none of whose files may grow beyond `size` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "nf4tui", *map(str, words)],
        cwd=place,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_file_that_cannot_grow_ends_the_run_in_one_line_and_resuming_completes_it(
    place: Path, nf4tui: Run, train: Run
) -> None:
    """The limit stops an adapter of 20 kB as a full disk would; smaller files are still written."""
    found = limited(place, train(), 10_000)
    assert found.returncode == 4, found
    assert found.stderr.count("\n") == 1 and "Traceback" not in found.stderr
    assert "File too large" in found.stderr and "--resume goes on" in found.stderr
    events = [json.loads(line) for line in (place / "run/events.jsonl").read_text("utf-8").splitlines()]
    assert events[-1]["event"] == "error" and "File too large" in events[-1]["message"]
    assert json.loads((place / "run/status.json").read_text("utf-8"))["state"] == "failed"
    assert not (place / "run/adapter").exists()
    resumed = nf4tui(*train("--resume"))
    assert (resumed.code, resumed.err) == (0, "")
    assert (place / "run/adapter/adapter_model.safetensors").stat().st_size > 10_000


def test_no_room_for_the_first_file_is_refused(place: Path, train: Run) -> None:
    found = limited(place, train(), 0)
    assert found.returncode == 2
    assert found.stderr.startswith("nf4tui: error: ") and found.stderr.count("\n") == 1, found
    assert "run: cannot be made (File too large)" in found.stderr
    assert not (place / "run/config.toml").exists()


def full_after(allowed: int, write: Callable[..., None]) -> Callable[..., None]:
    """`write`, on a disk that has room for so many calls."""
    calls = iter(range(allowed))

    def limited(target: Any, *arguments: Any, **more: Any) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(target, *arguments, **more)

    return limited


@pytest.mark.parametrize(
    ("where", "name"), [(durable, "write_file"), (EventLog, "append")], ids=["file", "event"]
)
@pytest.mark.parametrize("allowed", range(6))
def test_a_disk_that_is_full_at_any_write_is_one_line_and_resuming_completes_the_run(
    place: Path, nf4tui: Run, train: Run, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, allowed: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(where, name, full_after(allowed, getattr(where, name)))
        found = nf4tui(*train("--save-every", "1"))
    assert found.code == (2 if where is durable and allowed == 0 else 4), found
    assert found.err.count("\n") == 1 and "No space left on device" in found.err
    assert str(place / "run") in found.err
    resumed = nf4tui(*train("--save-every", "1", "--resume"))
    assert (resumed.code, resumed.err) == (0, "")
    assert (place / "run/adapter/adapter_model.safetensors").is_file()
