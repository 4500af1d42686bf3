"""A worker trains in a session of its own, whatever becomes of who started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.errors import CannotRunError, InputError
from nf4tui.runs import control, directory
from nf4tui.runs.status import read_status
from nf4tui.training.launch import start_worker

Command = Callable[..., list[str]]


def complete(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def adapter_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "adapter").iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Any) -> Any:
    """(folder of an uninterrupted run, seconds that it took)."""
    from nf4tui.training.session import attempt
    from nf4tui.training.signals import StopSignals

    out = tmp_path_factory.mktemp("whole") / "run"
    for _ in attempt(tiny.config(out), resume=False, explicit=frozenset(), signals=StopSignals()):
        pass
    return out


def test_a_worker_trains_to_the_end_in_a_session_of_its_own(tmp_path: Path, tiny: Any, whole: Path) -> None:
    worker = start_worker(tiny.config(tmp_path / "run"), resume=False, explicit=frozenset())
    assert worker is not None
    assert os.getsid(worker.pid) == worker.pid != os.getsid(0)
    worker.send_signal(signal.SIGHUP)
    assert worker.wait(timeout=30) == 0
    assert adapter_bytes(tmp_path / "run") == adapter_bytes(whole)
    assert "done after step 20" in (tmp_path / "run/log.txt").read_text()


def test_a_worker_is_stopped_by_a_word_and_resumed_by_another_worker(
    tmp_path: Path, tiny: Any, whole: Path
) -> None:
    run = directory.run_at(str(tmp_path / "run"))
    worker = start_worker(tiny.config(run.path), resume=False, explicit=frozenset())
    assert worker is not None
    control.send(run.control, "stop")
    assert worker.wait(timeout=30) == 143
    again = start_worker(tiny.config(run.path), resume=True, explicit=frozenset())
    assert again is not None and again.wait(timeout=30) == 0
    assert adapter_bytes(run.path) == adapter_bytes(whole)


def test_a_worker_that_cannot_begin_raises_its_error_here(tmp_path: Path, tiny: Any) -> None:
    config = tiny.config(tmp_path / "run", model=str(tmp_path / "no-model"))
    with pytest.raises(InputError, match="no-model"):
        start_worker(config, resume=False, explicit=frozenset())
    with pytest.raises(CannotRunError, match="cuda"):
        start_worker(tiny.config(tmp_path / "run", device="cuda"), resume=False, explicit=frozenset())
    assert not (tmp_path / "run").exists()


def test_a_worker_over_a_finished_run_says_so(
    tmp_path: Path, tiny: Any, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start_worker(tiny.config(whole), resume=True, explicit=frozenset()) is None
    assert "already finished at step 20" in capsys.readouterr().out


_START_AND_DIE = """
import os, sys
from nf4tui.runs.settings import parse_settings
from nf4tui.training.launch import start_worker
worker = start_worker(parse_settings(sys.argv[1], "test"), resume=False, explicit=frozenset())
print(worker.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_worker_outlives_the_process_that_started_it(tmp_path: Path, tiny: Any, whole: Path) -> None:
    from nf4tui.runs.settings import to_toml

    settings = to_toml(tiny.config(tmp_path / "run"))
    starter = complete([sys.executable, "-c", _START_AND_DIE, settings])
    assert starter.returncode == -9 and starter.stdout.strip().isdigit()
    for _ in range(300):
        status = read_status(tmp_path / "run/status.json")
        if status is not None and status.ended:
            break
        time.sleep(0.1)
    assert adapter_bytes(tmp_path / "run") == adapter_bytes(whole)
