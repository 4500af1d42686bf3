"""A run killed at any of its file-system calls can be resumed, and ends with the same bytes.

The calls are counted by Python's audit events (open for writing, mkdir, rename, remove, rmdir, truncate): the
process ends, as SIGKILL would end it, just before the n-th one that touches the run directory.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nf4tui.config import TrainConfig
from nf4tui.runs.event_log import read_events
from nf4tui.runs.events import Event, LogEvent
from nf4tui.training.session import attempt
from nf4tui.training.signals import StopSignals

_CALLS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"})
_KILLED = 9


def run_in_child(config: TrainConfig, *, die_at: int | None = None) -> int:
    """Trains (or resumes) in a forked child; returns its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        if die_at is not None:
            _die_before(die_at, config.out)
        for _ in attempt(config, resume=True, explicit=frozenset(), signals=StopSignals()):
            pass
        code = 0
    finally:
        os._exit(code)
    return code


def _die_before(number: int, out: str) -> None:
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        # Removing a whole folder names its files relative to it; nothing else here removes files.
        inside = event in ("os.remove", "os.rmdir") or str(arguments[0]).startswith(out)
        if event not in _CALLS or not inside:
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        count += 1
        if count == number:
            os._exit(_KILLED)

    sys.addaudithook(hook)


def _is_warning(event: Event) -> bool:
    return isinstance(event, LogEvent) and event.level == "warning"


def check_crash_points(tmp_path: Path, tiny: Any, stride: int) -> int:
    """Returns how many calls a run makes."""

    def config(out: Path) -> TrainConfig:
        settings: TrainConfig = tiny.config(out, steps=3, save_every=1, keep=1, eval_every=2, parity="off")
        return settings

    assert run_in_child(config(tmp_path / "whole")) == 0
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole/adapter").iterdir()}
    number = 1
    while True:
        out = tmp_path / str(number)
        code = run_in_child(config(out), die_at=number)
        if code == 0:
            return number
        assert code == _KILLED
        assert run_in_child(config(out)) == 0, f"not resumable after a kill at call {number}"
        assert {path.name: path.read_bytes() for path in (out / "adapter").iterdir()} == expected
        assert sorted(path.name for path in out.iterdir()) == sorted(
            path.name for path in (tmp_path / "whole").iterdir()
        )
        assert not [event for event in read_events(out / "events.jsonl") if _is_warning(event)]
        number += stride


def test_a_kill_at_a_file_system_call_never_costs_the_run(tmp_path: Path, tiny: Any) -> None:
    assert check_crash_points(tmp_path, tiny, stride=5) > 50


@pytest.mark.slow
def test_a_kill_at_any_file_system_call_never_costs_the_run(tmp_path: Path, tiny: Any) -> None:
    assert check_crash_points(tmp_path, tiny, stride=1) > 50
