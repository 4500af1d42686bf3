"""Run directories: begun once, locked while trained, and never at the cost of anybody's files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.runs import directory
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.lock import RunLock
from nf4tui.runs.settings import read_settings


def config_of(out: Path | str) -> TrainConfig:
    return TrainConfig(data=("d.jsonl",), model="m", out=str(out))


def begin(out: Path | str) -> RunDirectory:
    run = directory.run_at(str(out))
    with directory.begin(run, config_of(out)):
        pass
    return run


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("name", ["run", "with parents/and spaces", "ünï-\u202e-codé", "a" * 200])
def test_a_run_is_begun_in_a_new_folder(tmp_path: Path, name: str) -> None:
    run = begin(tmp_path / name)
    assert directory.exists(run)
    assert read_settings(run.config) == config_of(tmp_path / name)
    assert run.control.is_dir() and run.checkpoints.is_dir()


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert directory.exists(begin(tmp_path))


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert directory.run_at("~/runs/x").path == tmp_path / "runs/x"


def test_an_existing_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    before = listing(tmp_path)
    with pytest.raises(InputError, match="--resume"):
        directory.check_free(run)
    with pytest.raises(InputError, match="--resume"), directory.begin(run, config_of(run.path)):
        pass
    assert listing(tmp_path).keys() == before.keys()
    assert run.config.read_bytes() == before["run/config.toml"]


@pytest.mark.parametrize("name", ["notes.txt", "lock", "config.txt", ".nf4tui-tmp-mine"])
def test_a_folder_with_foreign_files_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my own text")
    before = listing(tmp_path)
    with pytest.raises(InputError, match=name):
        directory.check_free(directory.run_at(str(tmp_path)))
    assert listing(tmp_path) == before


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_file(path: Path) -> None:
    path.write_text("mine")


def make_link(path: Path) -> None:
    path.symlink_to("elsewhere")


def make_link_to_folder(path: Path) -> None:
    (path.parent / "folder").mkdir()
    path.symlink_to("folder")


@pytest.mark.parametrize("make", [make_fifo, make_file, make_link, make_link_to_folder])
def test_what_is_in_the_way_is_refused_by_name(tmp_path: Path, make: object) -> None:
    path = tmp_path / "run"
    make(path)  # type: ignore[operator]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="run: is "):
        directory.check_free(directory.run_at(str(path)))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        directory.check_free(directory.run_at(str(tmp_path / "file/run")))


def test_a_place_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be (made|written)"):
        begin("/proc/nf4tui-run")


def test_a_name_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        directory.check_free(directory.run_at(str(tmp_path / ("a" * 300))))


@pytest.mark.parametrize("out", ["", "a\nb", "a\0b", "a\x1b[2Jb", "\udcff", "~nobody-of-that-name/x"])
def test_a_name_that_no_line_can_show_is_refused(out: str) -> None:
    with pytest.raises(InputError, match="--out"):
        directory.run_at(out)


@pytest.mark.parametrize("part", ["config.toml", "events.jsonl", "status.json", "log.txt", "lock"])
def test_a_part_of_a_run_that_is_no_plain_file_is_refused(tmp_path: Path, part: str) -> None:
    run = begin(tmp_path / "run")
    (run.path / part).unlink(missing_ok=True)
    (run.path / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=part):
        directory.exists(run)


def test_a_kill_at_any_moment_of_beginning_leaves_what_can_be_begun_again(tmp_path: Path) -> None:
    # After each system call that `begin` makes, the folder must be taken by another `begin`.
    states: list[list[str]] = [[], ["lock"], ["lock", ".nf4tui-tmp-config.toml"]]
    for number, names in enumerate(states):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("123\n" if name == "lock" else "data = [")
        assert not directory.exists(directory.run_at(str(folder)))
        run = begin(folder)
        assert read_settings(run.config) == config_of(folder)


def test_taking_up_removes_what_a_killed_trainer_left_half_done_and_old_words(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    (run.checkpoints / ".nf4tui-tmp-step-000010").mkdir()
    (run.path / ".nf4tui-tmp-adapter").mkdir()
    (run.control / "1-1-stop").touch()
    (run.path / "my notes").write_text("mine")
    with directory.take_up(run):
        pass
    assert not list(run.checkpoints.iterdir()) and not list(run.control.iterdir())
    assert not (run.path / ".nf4tui-tmp-adapter").exists()
    assert (run.path / "my notes").read_text() == "mine"


_HOLD = """
import sys
from pathlib import Path
from nf4tui.runs.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_trainer_is_refused_with_the_pid_of_the_first_until_that_one_dies(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, run.lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    with holder, holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"process {holder.pid};"), directory.take_up(run):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with directory.take_up(run):
        assert run.lock.read_text() == f"{os.getpid()}\n"


def test_a_lock_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "lock").symlink_to("theirs")
    with pytest.raises(OSError):
        RunLock(tmp_path / "lock")
    assert (tmp_path / "theirs").read_text() == "precious"


def test_a_folder_without_a_run_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        directory.find_run(tmp_path)
    run = begin(tmp_path / "run")
    assert directory.find_run(tmp_path / "run") == run
