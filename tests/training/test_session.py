"""What a resumed run accepts, refuses and says; what a finished and a failed one leave."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.lora import LoraConfig, ModuleLora
from nf4tui.lora_init import initial_adapters
from nf4tui.models.adapter import read_adapter, write_adapter
from nf4tui.models.qwen2 import read_config
from nf4tui.runs import checkpoint
from nf4tui.runs.event_log import EventLog, read_events
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    LogEvent,
    StartEvent,
    StepEvent,
)
from nf4tui.runs.settings import read_settings
from nf4tui.runs.status import read_status
from nf4tui.training import circumstances, loop, session
from nf4tui.training.signals import StopSignals


def attempt(config: TrainConfig, *explicit: str, resume: bool = False) -> Iterator[Event]:
    return session.attempt(config, resume=resume, explicit=frozenset(explicit), signals=StopSignals())


def train(config: TrainConfig, *explicit: str, resume: bool = False) -> list[Event]:
    return list(attempt(config, *explicit, resume=resume))


def train_until_checkpoint(config: TrainConfig) -> None:
    events = attempt(config)
    assert any(isinstance(event, CheckpointEvent) for event in events)
    events.close()  # type: ignore[attr-defined]


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, LogEvent) and event.level == "warning"]


def test_a_resumed_run_keeps_its_settings_and_refuses_others_by_name(tmp_path: Path, tiny: Any) -> None:
    config = tiny.config(tmp_path / "run")
    train_until_checkpoint(config)
    before = (tmp_path / "run/events.jsonl").read_bytes()
    other = dataclasses.replace(config, lr=0.5, rank=7, seed=3)
    with pytest.raises(InputError, match=r"--lr 0\.5 \(the run has 0\.01\), --rank 7 \(the run has 2\)"):
        train(other, "lr", "rank", resume=True)
    assert (tmp_path / "run/events.jsonl").read_bytes() == before
    events = train(other, resume=True)
    assert isinstance(events[-1], DoneEvent)
    assert read_settings(tmp_path / "run/config.toml").lr == 0.01


def test_a_run_whose_data_changed_is_not_resumed(tmp_path: Path, tiny: Any) -> None:
    data = tmp_path / "data.jsonl"
    shutil.copy(tiny.data, data)
    config = tiny.config(tmp_path / "run", data=(str(data),))
    train_until_checkpoint(config)
    data.write_text(data.read_text().replace("is 3 even", "is 5 even"))
    with pytest.raises(InputError, match="data are not those of the run"):
        train(config, resume=True)


def test_a_run_whose_base_changed_is_not_resumed(tmp_path: Path, tiny: Any) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    config = tiny.config(tmp_path / "run", model=str(model))
    train_until_checkpoint(config)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(InputError, match="weights are not those of the run"):
        train(config, resume=True)


def test_other_versions_or_threads_are_a_warning_and_the_run_goes_on(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(tmp_path / "run")
    train_until_checkpoint(config)
    versions = {**circumstances.versions(), "numpy": "0.1"}
    monkeypatch.setattr(circumstances, "versions", lambda: versions)
    monkeypatch.setattr(circumstances, "threads", lambda: 77)
    events = train(config, resume=True)
    (message,) = warnings(events)
    assert "not bit-exact" in message and "threads 77 (was " in message and "numpy 0.1 (was " in message
    assert isinstance(events[-1], DoneEvent)


def test_the_same_circumstances_are_no_warning(tmp_path: Path, tiny: Any) -> None:
    config = tiny.config(tmp_path / "run")
    train_until_checkpoint(config)
    events = train(config, resume=True)
    assert warnings(events) == []
    starts = [event for event in read_events(tmp_path / "run/events.jsonl") if isinstance(event, StartEvent)]
    assert [(event.attempt, event.resumed_from) for event in starts] == [(1, None), (2, 4)]


def test_a_broken_checkpoint_is_named_in_a_warning_and_passed_over(tmp_path: Path, tiny: Any) -> None:
    config = tiny.config(tmp_path / "run", eval_split=None, eval_every=None)
    train(config)
    shutil.rmtree(tmp_path / "run/adapter")
    broken = checkpoint.path_of(tmp_path / "run/checkpoints", 20) / "optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    events = train(config, resume=True)
    (message,) = warnings(events)
    assert "step-000020/optimizer.safetensors" in message
    assert [event.step for event in events if isinstance(event, StepEvent)] == [17, 18, 19, 20]


def test_resume_without_a_run_begins_one_and_says_so(tmp_path: Path, tiny: Any) -> None:
    events = train(tiny.config(tmp_path / "run"), resume=True)
    assert isinstance(events[0], LogEvent) and "no run to resume" in events[0].message
    assert isinstance(events[-1], DoneEvent)


def test_a_finished_run_says_so_and_changes_no_file(tmp_path: Path, tiny: Any) -> None:
    config = tiny.config(tmp_path / "run")
    done = train(config)[-1]

    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "lock"}

    before = state()
    events = train(config, resume=True)
    assert isinstance(events[0], LogEvent) and "already finished at step 20" in events[0].message
    assert events[1:] == [done]
    assert state() == before


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_finished_run_whose_adapter_was_lost_gets_it_back(tmp_path: Path, tiny: Any, damage: str) -> None:
    config = tiny.config(tmp_path / "run")
    train(config)
    weights = tmp_path / "run/adapter/adapter_model.safetensors"
    expected = weights.read_bytes()
    weights.unlink() if damage == "removed" else weights.write_bytes(b"x")
    events = train(config, resume=True)
    assert not [event for event in events if isinstance(event, StepEvent)]
    assert weights.read_bytes() == expected


def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_it_can_be_resumed(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(log: EventLog, event: Event) -> None:
        if full_now or (isinstance(event, StepEvent) and event.step == 3):
            full_now.append(True)
            raise OSError(28, "No space left on device", "events.jsonl")
        append(log, event)

    full_now: list[bool] = []
    append = EventLog.append
    monkeypatch.setattr(EventLog, "append", full)
    with pytest.raises(TrainingFailedError, match=r"events\.jsonl: No space left"):
        train(tiny.config(tmp_path / "run"))
    status = read_status(tmp_path / "run/status.json")
    assert status is not None and status.state == "failed"
    monkeypatch.setattr(EventLog, "append", append)
    assert isinstance(train(tiny.config(tmp_path / "run"), resume=True)[-1], DoneEvent)


@pytest.mark.parametrize(
    ("raised", "seen", "message"),
    [
        (ZeroDivisionError("x"), ZeroDivisionError, "ZeroDivisionError: x"),
        (MemoryError(), TrainingFailedError, "out of memory; --resume with more of it goes on"),
    ],
)
def test_whatever_ends_a_run_is_recorded_with_its_state(
    tmp_path: Path,
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    seen: type[Exception],
    message: str,
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(loop.snapshot, "save", fail)
    with pytest.raises(seen):
        train(tiny.config(tmp_path / "run"))
    last = read_events(tmp_path / "run/events.jsonl")[-1]
    assert isinstance(last, ErrorEvent) and last.message == message
    status = read_status(tmp_path / "run/status.json")
    assert status is not None and status.state == "failed"


def test_a_learning_rate_that_blows_up_ends_with_an_error_event_and_never_a_zero_loss(
    tmp_path: Path, tiny: Any
) -> None:
    config = tiny.config(
        tmp_path / "run", lr=1e30, clip=0.0, warmup=0.0, eval_split=None, eval_every=None, parity="off"
    )
    with pytest.raises(TrainingFailedError, match="3 steps in a row"):
        train(config)
    events = read_events(tmp_path / "run/events.jsonl")
    assert isinstance(events[-1], ErrorEvent)
    failed = [event for event in events if isinstance(event, StepEvent) and not event.applied]
    assert len(failed) == 3 and all(event.nonfinite_tensor for event in failed)
    assert '"loss": null' in (tmp_path / "run/events.jsonl").read_text()


def test_a_run_from_an_adapter_goes_on_when_that_adapter_is_gone(tmp_path: Path, tiny: Any) -> None:
    """With modules, ranks and scalings of the adapter's own, which no setting of the run could say."""
    lora = LoraConfig(
        rank=2,
        alpha=4.0,
        targets=("q_proj", "down_proj"),
        modules=(ModuleLora("layers.0.attn.q_proj", 2, 3.0), ModuleLora("layers.0.mlp.down_proj", 3, 4.0)),
    )
    model = read_config(Path(tiny.model))
    start = tmp_path / "start"
    start.mkdir()
    write_adapter(start, model, lora, initial_adapters(model, lora, 1), base_model="base")
    whole = tiny.config(tmp_path / "whole", adapter=str(start))
    train(whole)
    found, _ = read_adapter(tmp_path / "whole/adapter", model)
    assert found.modules == lora.modules
    broken_off = tiny.config(tmp_path / "run", adapter=str(start))
    train_until_checkpoint(broken_off)
    shutil.rmtree(start)
    assert isinstance(train(broken_off, resume=True)[-1], DoneEvent)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "run/adapter" / name).read_bytes() == (
            tmp_path / "whole/adapter" / name
        ).read_bytes()


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, tiny: Any) -> None:
    model = read_config(Path(tiny.model))
    lora = LoraConfig(rank=2, alpha=4.0)
    tensors = initial_adapters(model, lora, 1)
    write_adapter(tmp_path, model, lora, tensors, base_model="other", base_sha256="ab" * 32)
    with pytest.raises(InputError, match="was trained on another base, 'other' with hash 'abababababab'"):
        train(tiny.config(tmp_path / "run", adapter=str(tmp_path)))
    assert not (tmp_path / "run").exists()
