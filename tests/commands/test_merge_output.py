"""Where `nf4tui merge` writes: what is refused before anything is written, and that nothing is left half done."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.commands.merge_output import built, check_space, new_directory, text_files
from nf4tui.data.tokenizer import load_tokenizer
from nf4tui.errors import InputError


@pytest.fixture
def model(tmp_path: Path, sample_model: Path) -> Path:
    shutil.copytree(sample_model, tmp_path / "model")
    return tmp_path / "model"


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_place_that_is_taken_or_cannot_be_used_is_refused(tmp_path: Path, model: Path) -> None:
    full, file, link, fifo = tmp_path / "full", tmp_path / "file", tmp_path / "link", tmp_path / "fifo"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(fifo)
    (tmp_path / "inside").symlink_to(model)
    before = sorted(tmp_path.rglob("*"))
    for out, says in (
        (full, "is not empty"),
        (file, "is no directory"),
        (fifo, "is no directory"),
        (link, "is a link"),
        (link / "below", "is a link to nowhere"),
        (file / "below", "is a file"),
        (model, "is not empty"),
        (model / "merged", "lies in the model's own directory"),
        (tmp_path / "inside/deep/merged", "lies in the model's own directory"),
        (tmp_path / "a\0b", "cannot be used"),
        (tmp_path / ("x" * 300), "cannot be used"),
        ("~nobody-here/merged", "cannot be used"),
        ("", "name a new directory"),
        ("/", "name a new directory"),
        (tmp_path / "..", "name a new directory"),
    ):
        assert says in refusal(new_directory, str(out), model), out
    assert sorted(tmp_path.rglob("*")) == before
    assert (full / "mine.txt").read_text() == file.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path != tmp_path)
        assert f"{tmp_path}: cannot be written" in refusal(new_directory, str(tmp_path / "out"), model)
    (tmp_path / "mounted").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path.name == "mounted")
        assert "is a mount point" in refusal(new_directory, str(tmp_path / "mounted"), model)


def test_a_disk_that_is_too_full_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 5 * 2**30))
    check_space(tmp_path / "not/there/yet", 4 * 2**30)
    assert "takes 6.0 GiB, but 5.0 GiB are free" in refusal(check_space, tmp_path / "out", 6 * 2**30)


@pytest.mark.parametrize("name", ["new", "empty", "a b\nc \udcff", "far/below/new"])
def test_a_new_or_empty_directory_is_filled_and_appears_whole(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    target = new_directory(name, model)
    with built(target) as folder:
        (folder / "file").write_text("content")
        assert not (target / "file").exists()
    assert (target / "file").read_text() == "content"
    assert [path.name for path in target.parent.glob(".*")] == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught, built(tmp_path / "far/below/new") as folder:
        (folder / "file").write_text("content")
        raise error
    if isinstance(error, OSError):
        assert "new: cannot be written (No space left on device); name another --out" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(InputError, match="cannot be written"), built(target) as folder:
        (folder / "file").write_text("ours")
        target.mkdir()
        (target / "file").write_text("theirs")
    assert (target / "file").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [target]


PROGRAM = """
import signal, sys, time
from pathlib import Path
from nf4tui.commands.merge_output import built
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with built(Path(sys.argv[1])) as folder:
    (folder / "model.safetensors").write_text("half of it")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_kill_leaves_no_model(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "deep/out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert not (tmp_path / "deep/out").exists()
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_files_beside_the_weights_are_those_of_the_model(tmp_path: Path, model: Path) -> None:
    (model / "merges.txt").write_text("a b\n")
    files = text_files(model, load_tokenizer(model))
    for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt"):
        assert files[name] == (model / name).read_bytes()
    assert set(files) == {"tokenizer.json", "tokenizer_config.json", "merges.txt", "generation_config.json"}


def test_a_link_out_of_the_model_is_not_copied(tmp_path: Path, model: Path) -> None:
    tokenizer = load_tokenizer(model)
    (tmp_path / "secret").write_text("secret")
    (model / "merges.txt").symlink_to(tmp_path / "secret")
    assert "merges.txt: a link that leaves the model directory" in refusal(text_files, model, tokenizer)
    (model / "merges.txt").unlink()
    (model / "merges.txt").symlink_to(tmp_path / "gone")
    assert "missing or cannot be followed" in refusal(text_files, model, tokenizer)
    (model / "merges.txt").unlink()
    os.mkfifo(model / "merges.txt")
    assert "not a regular file" in refusal(text_files, model, tokenizer)
