"""Real processes: killed, interrupted, cut off from their output; resumed, they end with the same bytes."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.runs import checkpoint
from nf4tui.runs.event_log import read_events
from nf4tui.runs.events import CheckpointEvent, StartEvent, StepEvent, current, parse, to_line
from nf4tui.runs.status import read_status

Command = Callable[..., list[str]]


def complete(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def adapter_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "adapter").iterdir())}


def losses(out: Path) -> list[tuple[int, float]]:
    events = current(read_events(out / "events.jsonl"))
    return [(event.step, event.loss) for event in events if isinstance(event, StepEvent)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Any) -> Any:
    """(folder of an uninterrupted run, seconds that it took)."""
    from nf4tui.training.session import attempt
    from nf4tui.training.signals import StopSignals

    out = tmp_path_factory.mktemp("whole") / "run"
    for _ in attempt(tiny.config(out), resume=False, explicit=frozenset(), signals=StopSignals()):
        pass
    return out


def kill_and_resume(out: Path, tiny: Any, command: Command, seconds: float) -> None:
    process = subprocess.Popen(command(tiny.config(out)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    resumed = complete(command(tiny.config(out), resume=True))
    assert (resumed.returncode, resumed.stderr) == (0, "")


def check_kills(kills: int, seed: int, tmp_path: Path, tiny: Any, command: Command, whole: Path) -> None:
    began = time.monotonic()
    assert complete(command(tiny.config(tmp_path / "timed"))).returncode == 0
    lifetime = time.monotonic() - began
    assert adapter_bytes(tmp_path / "timed") == adapter_bytes(whole)
    moments = random.Random(seed)
    attempts = 0
    for number in range(kills):
        out = tmp_path / str(number)
        kill_and_resume(out, tiny, command, moments.uniform(0.1, 1.0) * lifetime)
        assert adapter_bytes(out) == adapter_bytes(whole)
        assert losses(out) == losses(whole)
        attempts += sum(isinstance(event, StartEvent) for event in read_events(out / "events.jsonl"))
    assert attempts > kills, "no kill fell into a run"


def test_killed_with_sigkill_and_resumed_a_run_ends_with_the_same_bytes(
    tmp_path: Path, tiny: Any, command: Command, whole: Path
) -> None:
    check_kills(6, 1, tmp_path, tiny, command, whole)


@pytest.mark.slow
def test_fifty_kills_each_resumed_end_with_the_same_bytes(
    tmp_path: Path, tiny: Any, command: Command, whole: Path
) -> None:
    check_kills(50, 2, tmp_path, tiny, command, whole)


def start_until_first_step(line: list[str], **options: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    while not (shown := process.stdout.readline()).startswith(("step", '{"event": "step"')):
        assert shown, process.communicate()
    return process


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_after_a_checkpoint_with_its_exit_code(
    tmp_path: Path, tiny: Any, command: Command, number: signal.Signals, exit_code: int
) -> None:
    config = tiny.config(tmp_path / "run", steps=5000, save_every=4000, eval_every=4000)
    process = start_until_first_step(command(config))
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (exit_code, "")
    events = read_events(tmp_path / "run/events.jsonl")
    last = events[-1]
    assert isinstance(last, CheckpointEvent)
    assert last.step == max(event.step for event in events if isinstance(event, StepEvent))
    assert out.splitlines()[-1].startswith("checkpoint")
    status = read_status(tmp_path / "run/status.json")
    assert status is not None and status.state == "stopped"


def test_a_run_stopped_by_a_signal_and_resumed_ends_with_the_same_bytes(
    tmp_path: Path, tiny: Any, command: Command, whole: Path
) -> None:
    process = start_until_first_step(command(tiny.config(tmp_path / "run")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert complete(command(tiny.config(tmp_path / "run"), resume=True)).returncode == 0
    assert adapter_bytes(tmp_path / "run") == adapter_bytes(whole)
    assert losses(tmp_path / "run") == losses(whole)


_HANG = """
import time
from nf4tui.training.signals import StopSignals, caught
signals = StopSignals()
signals.begun = BEGUN
with caught(signals):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if signals.received is not None:
            print("received", flush=True)
"""


def start_hanging(begun: bool) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", _HANG.replace("BEGUN", str(begun))]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_second_sigint_ends_the_process_at_once() -> None:
    process = start_hanging(begun=True)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "received\n"
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=10)[1], process.returncode) == ("", 130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_before_there_is_a_run_to_stop_a_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    process = start_hanging(begun=False)
    process.send_signal(number)
    assert (process.communicate(timeout=10)[1], process.returncode) == ("", 128 + number)


def test_under_nohup_a_hang_up_is_ignored(tmp_path: Path, tiny: Any, command: Command) -> None:
    process = start_until_first_step(
        command(tiny.config(tmp_path / "run")),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_closed_output_stops_the_run_after_a_checkpoint_and_it_can_be_resumed(
    tmp_path: Path, tiny: Any, command: Command, whole: Path, as_json: bool
) -> None:
    process = start_until_first_step(command(tiny.config(tmp_path / "run"), as_json=as_json))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=30) == 129
    assert err.startswith("standard output: Broken pipe") and err.count("\n") == 1
    assert checkpoint.steps(tmp_path / "run/checkpoints")
    assert complete(command(tiny.config(tmp_path / "run"), resume=True)).returncode == 0
    assert adapter_bytes(tmp_path / "run") == adapter_bytes(whole)


def test_a_full_disk_behind_the_output_is_told_in_one_line(
    tmp_path: Path, tiny: Any, command: Command
) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            command(tiny.config(tmp_path / "run")),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 129
    assert process.stderr.startswith("standard output: No space left") and process.stderr.count("\n") == 1


def test_json_prints_exactly_the_events_recorded_and_nothing_else(
    tmp_path: Path, tiny: Any, command: Command
) -> None:
    process = complete(command(tiny.config(tmp_path / "run"), as_json=True))
    assert (process.returncode, process.stderr) == (0, "")
    printed = process.stdout.splitlines()
    recorded = (tmp_path / "run/events.jsonl").read_text().splitlines()
    assert [{**json.loads(line), "schema": 1} for line in printed] == [json.loads(line) for line in recorded]
    assert [to_line(parse(line)) for line in recorded] == [f"{line}\n" for line in recorded]
    kinds = [json.loads(line)["event"] for line in printed]
    assert kinds[0] == "start" and kinds[-1] == "done"
    assert set(kinds) == {"start", "log", "step", "eval", "precision", "checkpoint", "done"}


def test_json_prints_an_error_as_an_event_with_its_exit_code(
    tmp_path: Path, tiny: Any, command: Command
) -> None:
    config = tiny.config(tmp_path / "run", data=(str(tmp_path / "missing.jsonl"),))
    process = complete(command(config, as_json=True))
    assert process.returncode == 2
    (line,) = process.stdout.splitlines()
    assert json.loads(line)["event"] == "error" and "missing.jsonl" in json.loads(line)["message"]
    assert not (tmp_path / "run").exists()


def test_a_second_process_is_refused_while_the_first_one_trains(
    tmp_path: Path, tiny: Any, command: Command
) -> None:
    config = tiny.config(tmp_path / "run", steps=5000, save_every=4000, eval_every=4000)
    process = start_until_first_step(command(config))
    second = complete(command(config, resume=True))
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert f"is being trained by process {process.pid};" in second.stderr
