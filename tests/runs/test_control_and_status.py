"""Words reach the trainer once, in order; status.json says whether it lives."""

import dataclasses
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from nf4tui.errors import InputError
from nf4tui.runs import control
from nf4tui.runs.events import now
from nf4tui.runs.status import Status, StatusFile, read_status


def test_words_come_out_once_in_the_order_sent(tmp_path: Path) -> None:
    for word in control.WORDS:
        control.send(tmp_path, word)
    assert control.take(tmp_path) == list(control.WORDS)
    assert control.take(tmp_path) == []


def test_half_sent_words_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    for name in (".00001-1-stop", "notes", "1-1-explode"):
        (tmp_path / name).write_text("")
    assert control.take(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_sending_to_a_run_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot send 'stop'"):
        control.send(tmp_path / "nowhere", "stop")
    assert control.take(tmp_path / "nowhere") == []


def test_a_path_longer_than_a_socket_could_have_works(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 120) / ("b" * 120)
    deep.mkdir(parents=True)
    control.send(deep, "pause")
    assert control.take(deep) == ["pause"]


def test_a_status_is_read_back_and_its_own_process_is_alive(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "status.json")
    file.set_state("paused")
    status = read_status(tmp_path / "status.json")
    assert status is not None
    assert (status.pid, status.host, status.state) == (os.getpid(), platform.node(), "paused")
    assert not status.ended and not status.crashed()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff"])
def test_a_status_that_cannot_be_read_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "status.json").write_bytes(data)
    assert read_status(tmp_path / "status.json") is None
    assert read_status(tmp_path / "nowhere.json") is None


def test_crashed_means_silent_gone_and_not_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    crashed = Status(
        pid=ended.pid,
        host=platform.node(),
        started="2020-01-01T00:00:00.000Z",
        state="running",
        heartbeat="2020-01-01T00:00:00.000Z",
    )
    assert crashed.crashed()
    assert not dataclasses.replace(crashed, heartbeat=now()).crashed()
    assert not dataclasses.replace(crashed, pid=os.getpid()).crashed()
    assert not dataclasses.replace(crashed, state="finished").crashed()
    assert dataclasses.replace(crashed, pid=os.getpid(), host="another machine").crashed()


def test_a_heartbeat_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "status.json")
    before = (tmp_path / "status.json").stat().st_ino
    for _ in range(100):
        file.beat()
    assert (tmp_path / "status.json").stat().st_ino == before
