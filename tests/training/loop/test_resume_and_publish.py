"""Resume is exact, broken checkpoints are passed over, and the adapter published is the one trained."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.engine import LossSum
from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.runs import checkpoint
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    EvalEvent,
    Event,
    StepEvent,
    to_object,
)
from nf4tui.training import snapshot


def numbers(events: list[Event]) -> list[dict[str, Any]]:
    """The steps' and validations' numbers, without what a clock says."""
    return [
        {name: value for name, value in to_object(event).items() if name not in ("time", "step_ms")}
        for event in events
        if isinstance(event, StepEvent | EvalEvent)
    ]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def of(kind: type[Any], events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def with_validation_losses(prepared: Any, losses: list[float]) -> Any:
    """Each validation has one batch; its losses are these, the first at step 0."""
    prepared.engine.losses_of_evaluation = iter(losses)
    return dataclasses.replace(prepared, validation=prepared.validation[:1])


@pytest.mark.parametrize("save_every", [3, 7])
def test_killed_after_any_event_and_resumed_a_run_equals_the_uninterrupted_one(
    tmp_path: Path, fake: Any, save_every: int
) -> None:
    settings = {"save_every": save_every, "grad_accum": 2, "keep": 2}
    with fake.new_run(tmp_path / "whole") as run:
        whole = list(fake.attempt(run, fake.prepared(run, **settings)))
        expected, adapter = numbers(whole), files(run.adapter)
        last = files(checkpoint.path_of(run.checkpoints, 20))
    assert len(of(StepEvent, whole)) == 20
    for kill in range(1, len(whole)):
        with fake.new_run(tmp_path / f"killed-{kill}") as run:
            events = fake.attempt(run, fake.prepared(run, **settings))
            before = list(itertools.islice(events, kill))
            events.close()
            after = list(fake.attempt(run, fake.prepared(run, **settings)))
            saved = _last_saved(before)
            assert after[0].resumed_from == saved
            # What the first attempt had saved, then the second attempt, is the whole run.
            kept = [values for values in numbers(before) if saved is not None and values["step"] <= saved]
            assert kept + numbers(after) == expected
            assert files(run.adapter) == adapter
            again = files(checkpoint.path_of(run.checkpoints, 20))
            assert again["optimizer.safetensors"] == last["optimizer.safetensors"]
            assert again["adapter_model.safetensors"] == last["adapter_model.safetensors"]


def _last_saved(events: list[Event]) -> int | None:
    return max((event.step for event in of(CheckpointEvent, events)), default=None)


def test_a_run_killed_again_and_again_still_equals_the_uninterrupted_one(tmp_path: Path, fake: Any) -> None:
    with fake.new_run(tmp_path / "whole") as run:
        list(fake.attempt(run, fake.prepared(run, save_every=2)))
        adapter = files(run.adapter)
    with fake.new_run(tmp_path / "killed") as run:
        for length in itertools.cycle([5, 9, 4, 7]):
            events = fake.attempt(run, fake.prepared(run, save_every=2))
            taken = list(itertools.islice(events, length))
            events.close()
            if isinstance(taken[-1], DoneEvent):
                break
        assert files(run.adapter) == adapter


def test_a_checkpoint_holds_the_moments_and_the_count_of_updates_applied(
    run: RunDirectory, fake: Any
) -> None:
    prepared = fake.prepared(run, poison={3: "loss"}, steps=5)
    list(fake.attempt(run, prepared))
    state = prepared.engine.optimizer_state()
    assert state.updates == 4
    fresh = fake.prepared(run, steps=5)
    list(fake.attempt(run, fresh))
    again = fresh.engine.optimizer_state()
    assert again.updates == 4 and fresh.engine.steps_taken == []
    for name, moment in state.exp_avg.items():
        np.testing.assert_array_equal(again.exp_avg[name], moment)
        np.testing.assert_array_equal(again.exp_avg_sq[name], state.exp_avg_sq[name])


def test_the_three_steps_are_counted_across_a_resume(run: RunDirectory, fake: Any) -> None:
    poison = dict.fromkeys((4, 5, 6), "loss")
    events = fake.attempt(run, fake.prepared(run, poison=poison))
    assert any(isinstance(event, CheckpointEvent) and event.step == 5 for event in events)
    events.close()
    resumed = fake.prepared(run, poison=poison)
    with pytest.raises(TrainingFailedError, match="step 6:"):
        list(fake.attempt(run, resumed))
    assert resumed.engine.steps_taken == [6]


def test_a_broken_checkpoint_is_passed_over_and_named(run: RunDirectory, fake: Any) -> None:
    list(fake.attempt(run, fake.prepared(run, validation=False)))
    adapter = files(run.adapter)
    for path in run.adapter.iterdir():
        path.unlink()
    run.adapter.rmdir()
    for step, name in ((20, "optimizer.safetensors"), (15, "state.json")):
        (checkpoint.path_of(run.checkpoints, step) / name).write_bytes(b"x")
    found = list(snapshot.usable(run.checkpoints))
    assert [type(item) for item in found] == [InputError, InputError, snapshot.Snapshot]
    assert "step-000020" in str(found[0]) and "optimizer.safetensors" in str(found[0])
    assert "step-000015" in str(found[1]) and "state.json" in str(found[1])
    resumed = fake.prepared(run, validation=False)
    list(fake.attempt(run, resumed))
    assert resumed.engine.steps_taken == list(range(11, 21))
    assert files(run.adapter) == adapter


def test_a_checkpoint_whose_best_is_broken_is_passed_over(run: RunDirectory, fake: Any) -> None:
    losses = [0.1, 3.0, 2.0, 2.5, 2.0, 2.2, 1.0, 1.0]
    list(fake.attempt(run, with_validation_losses(fake.prepared(run, keep=9), losses)))
    (checkpoint.path_of(run.checkpoints, 8) / "adapter_model.safetensors").write_bytes(b"x")
    found = fake.newest(run)
    assert found is not None and found.progress.step == 5


def test_a_finished_run_resumed_takes_no_step_and_rewrites_nothing(run: RunDirectory, fake: Any) -> None:
    list(fake.attempt(run, fake.prepared(run)))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in run.path.rglob("*")}
    again = fake.prepared(run)
    events = list(fake.attempt(run, again))
    assert again.engine.steps_taken == [] and isinstance(events[-1], DoneEvent)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in run.path.rglob("*")} == before


def test_an_adapter_folder_that_is_somebody_elses_is_kept(run: RunDirectory, fake: Any) -> None:
    run.adapter.mkdir()
    (run.adapter / "adapter_model.safetensors").write_text("mine")
    list(fake.attempt(run, fake.prepared(run)))
    assert (run.path / "adapter.old-1/adapter_model.safetensors").read_text() == "mine"
    assert len(files(run.adapter)["adapter_model.safetensors"]) > 100


def test_an_adapter_that_reads_back_differently_fails_the_run(run: RunDirectory, fake: Any) -> None:
    prepared = fake.prepared(run, validation=False)
    engine = prepared.engine
    real = engine.load_adapters
    engine.load_adapters = lambda tensors: real({name: 2 * tensor for name, tensor in tensors.items()})
    with pytest.raises(TrainingFailedError, match="read back"):
        list(fake.attempt(run, prepared))


def test_an_adapter_whose_loss_is_not_a_number_fails_the_run(run: RunDirectory, fake: Any) -> None:
    prepared = fake.prepared(run, validation=False)
    prepared.engine.evaluate = lambda batch: LossSum(math.nan, batch.supervised_tokens)
    with pytest.raises(TrainingFailedError, match="read back"):
        list(fake.attempt(run, prepared))


def test_a_best_checkpoint_damaged_on_the_way_fails_the_run_by_name(run: RunDirectory, fake: Any) -> None:
    losses = [0.1, 3.0, 2.0, 2.5, 2.0, 2.2, 1.0, 1.0]
    with pytest.raises(TrainingFailedError, match=r"step-000008/optimizer\.safetensors"):
        for event in fake.attempt(run, with_validation_losses(fake.prepared(run), losses)):
            if isinstance(event, CheckpointEvent) and event.step == 10:
                (checkpoint.path_of(run.checkpoints, 8) / "optimizer.safetensors").write_bytes(b"")
    assert not run.adapter.exists()
