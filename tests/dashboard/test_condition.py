"""How a run is doing: what its trainer says, unless that process is gone."""

import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nf4tui.dashboard.condition import SYMBOLS, condition
from nf4tui.dashboard.palette import STATES
from nf4tui.runs.status import Status, read_status


def status(state: str = "running", age: float = 0.0, **changes: object) -> Status:
    heartbeat = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    values = {"pid": os.getpid(), "host": platform.node(), "started": heartbeat, "state": state}
    return Status(**{**values, "heartbeat": heartbeat, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("running", "running"),
        ("paused", "paused"),
        ("stopping", "stopping"),
        ("stopped", "stopped"),
        ("failed", "failed"),
        ("finished", "done"),
    ],
)
def test_a_living_trainer_is_believed(said: str, shown: str) -> None:
    assert condition(status(said), None).state == shown


def test_before_there_is_a_status_the_run_is_starting() -> None:
    assert condition(None, None).state == "starting"


def test_a_trainer_without_heartbeat_whose_process_is_gone_has_crashed(
    tmp_path: Path, dead_status: Callable[[Path], None]
) -> None:
    dead_status(tmp_path / "status.json")
    assert condition(read_status(tmp_path / "status.json"), None).state == "crashed"


def test_a_child_that_ended_without_saying_so_has_crashed_at_once() -> None:
    assert condition(status("running"), 137).state == "crashed"
    assert condition(None, 1).state == "crashed"
    assert condition(status("failed"), 4).state == "failed"


def test_a_long_step_is_silence_and_no_crash() -> None:
    found = condition(status(age=60), None)
    assert found.state == "running" and found.silent
    assert not condition(status(age=2), None).silent


@pytest.mark.parametrize("heartbeat", ["yesterday", 5, None, "2026-01-01"])
def test_a_status_that_no_trainer_wrote_is_no_crash_of_the_dashboard(heartbeat: object) -> None:
    assert condition(status(heartbeat=heartbeat), None).state == "starting"


def test_every_state_has_a_symbol_and_a_colour() -> None:
    assert SYMBOLS.keys() == STATES.keys()
