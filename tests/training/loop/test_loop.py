"""What the training loop promises, with a small fake engine in place of a model."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nf4tui.errors import TrainingFailedError
from nf4tui.runs import checkpoint
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    EvalEvent,
    Event,
    LogEvent,
    StartEvent,
    StateEvent,
    StepEvent,
    to_object,
)


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


def test_a_run_goes_from_start_to_done_and_its_loss_falls(run: RunDirectory, fake: Any) -> None:
    prepared = fake.prepared(run)
    events = list(fake.attempt(run, prepared))
    assert isinstance(events[0], StartEvent) and events[0].resumed_from is None
    steps = of(StepEvent, events)
    assert [event.step for event in steps] == prepared.engine.steps_taken == list(range(1, 21))
    assert steps[-1].loss < 0.7 * steps[0].loss
    assert [event.lr for event in steps] == [prepared.update(step).lr for step in range(1, 21)]
    assert all(event.tokens <= event.padded_tokens for event in steps)
    assert steps[-1].epoch == 20 / prepared.plan.steps_per_epoch
    assert [event.step for event in of(EvalEvent, events)] == [0, 4, 8, 12, 16, 20]
    done = events[-1]
    assert isinstance(done, DoneEvent) and done.step == 20
    assert sorted(files(run.adapter)) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "generation_config.json",
        "state.json",
    ]
    assert json.loads(files(run.adapter)["generation_config.json"]) == {"eos_token_id": [7, 3]}


def test_a_step_that_is_not_finite_is_not_applied_and_names_its_tensor(run: RunDirectory, fake: Any) -> None:
    name = "layers.0.attn.q_proj.grad_lora_A"
    prepared = fake.prepared(run, poison={2: name, 3: name, 5: "loss", 6: "loss"}, save_every=1, keep=99)
    events = list(fake.attempt(run, prepared))
    steps = {event.step: event for event in of(StepEvent, events)}
    assert [step for step, event in steps.items() if not event.applied] == [2, 3, 5, 6]
    assert steps[2].nonfinite_tensor == name and steps[2].nonfinite == 1 and math.isnan(steps[2].loss)
    weights = [
        files(checkpoint.path_of(run.checkpoints, step))["adapter_model.safetensors"] for step in (1, 3, 4)
    ]
    assert weights[0] == weights[1] != weights[2]
    assert isinstance(events[-1], DoneEvent)


def test_three_steps_in_a_row_that_are_not_finite_end_the_run_and_name_the_tensor(
    run: RunDirectory, fake: Any
) -> None:
    prepared = fake.prepared(run, poison=dict.fromkeys((4, 6, 7, 8), "layers.0.mlp.down_proj.grad_lora_B"))
    events = []
    with pytest.raises(TrainingFailedError, match=r"step 8: .*layers\.0\.mlp\.down_proj\.grad_lora_B"):
        events.extend(fake.attempt(run, prepared))
    assert prepared.engine.steps_taken[-1] == 8
    assert not run.adapter.exists()


def test_the_adapter_is_that_of_the_best_validation_and_its_checkpoint_is_kept(
    run: RunDirectory, fake: Any
) -> None:
    losses = [0.1, 3.0, 2.0, 2.5, 2.0, 2.2, 1.0, 1.0]
    prepared = with_validation_losses(fake.prepared(run, keep=1, save_every=3), losses)
    events = list(fake.attempt(run, prepared))
    assert [event.best for event in of(EvalEvent, events)] == [False, True, True, False, False, False]
    done = events[-1]
    assert isinstance(done, DoneEvent) and (done.step, done.best_step) == (20, 8)
    assert checkpoint.steps(run.checkpoints) == [20, 8]
    best, last = (files(checkpoint.path_of(run.checkpoints, step)) for step in (8, 20))
    assert files(run.adapter)["adapter_model.safetensors"] == best["adapter_model.safetensors"]
    assert best["adapter_model.safetensors"] != last["adapter_model.safetensors"]
    assert b'"best_step": 8' in files(run.adapter)["state.json"]


def test_without_validation_the_adapter_is_that_of_the_last_step(run: RunDirectory, fake: Any) -> None:
    events = list(fake.attempt(run, fake.prepared(run, validation=False)))
    done = events[-1]
    assert isinstance(done, DoneEvent) and done.best_step is None and not of(EvalEvent, events)
    last = files(checkpoint.path_of(run.checkpoints, 20))
    assert files(run.adapter)["adapter_model.safetensors"] == last["adapter_model.safetensors"]


def test_a_validation_loss_that_is_not_finite_is_never_the_best(run: RunDirectory, fake: Any) -> None:
    losses = [1.0, math.nan, math.inf, 5.0, math.nan, 6.0, 1.0, 1.0]
    events = list(fake.attempt(run, with_validation_losses(fake.prepared(run), losses)))
    assert [event.step for event in of(EvalEvent, events) if event.best] == [12]
    assert events[-1].best_step == 12  # type: ignore[union-attr]


def test_validation_is_the_mean_over_all_its_tokens_with_the_adapters_of_its_step(
    run: RunDirectory, fake: Any
) -> None:
    prepared = fake.prepared(run)
    sizes = {batch.supervised_tokens for batch in prepared.validation}
    assert len(sizes) > 1, "batches of one size could not tell a mean of means"
    for event in fake.attempt(run, prepared):
        if isinstance(event, EvalEvent):
            sums = [prepared.engine.evaluate(batch) for batch in prepared.validation]
            assert event.loss == sum(part.total for part in sums) / sum(part.tokens for part in sums)
            assert event.tokens == sum(part.tokens for part in sums)
            assert event.samples == 9


def test_a_run_stops_early_after_so_many_validations_without_improvement(
    run: RunDirectory, fake: Any
) -> None:
    losses = [9.0, 3.0, 2.0, 2.0, 2.1, 1.0, 1.0]
    events = list(fake.attempt(run, with_validation_losses(fake.prepared(run, early_stop=2), losses)))
    assert of(StepEvent, events)[-1].step == 16
    assert any("stopped early after step 16" in event.message for event in of(LogEvent, events))
    assert events[-1].best_step == 8  # type: ignore[union-attr]
    # Resumed, it stays stopped.
    again = fake.prepared(run, early_stop=2)
    list(fake.attempt(run, again))
    assert again.engine.steps_taken == []


class Words:
    """Says each word at the poll of its number (from 1), and counts the polls."""

    def __init__(self, words: dict[int, list[str]]) -> None:
        self.words = words
        self.polls = 0

    def __call__(self) -> list[str]:
        self.polls += 1
        return self.words.get(self.polls, [])


def test_the_word_stop_ends_the_run_after_the_step_with_a_checkpoint(run: RunDirectory, fake: Any) -> None:
    prepared = fake.prepared(run)
    events = list(fake.attempt(run, prepared, Words({7: ["stop"]})))
    assert prepared.engine.steps_taken == list(range(1, 8))
    stopping, saved = events[-2:]
    assert isinstance(stopping, StateEvent) and stopping.state == "stopping"
    assert isinstance(saved, CheckpointEvent) and saved.step == 7
    assert not run.adapter.exists()


def test_a_stop_at_the_last_step_does_not_keep_the_run_from_finishing(run: RunDirectory, fake: Any) -> None:
    events = list(fake.attempt(run, fake.prepared(run), Words({20: ["stop"]})))
    assert isinstance(events[-1], DoneEvent)


def test_the_word_checkpoint_saves_this_step_and_goes_on(run: RunDirectory, fake: Any) -> None:
    events = list(fake.attempt(run, fake.prepared(run, validation=False), Words({3: ["checkpoint"]})))
    assert [event.step for event in of(CheckpointEvent, events)] == [3, 5, 10, 15, 20]
    assert isinstance(events[-1], DoneEvent)


def test_a_paused_run_saves_waits_and_goes_on_with_the_same_numbers(tmp_path: Path, fake: Any) -> None:
    with fake.new_run(tmp_path / "whole") as run:
        whole = list(fake.attempt(run, fake.prepared(run)))
    words = Words({2: ["pause"], 5: ["pause", "resume", "pause"], 6: ["resume"]})
    with fake.new_run(tmp_path / "paused") as run:
        events = list(fake.attempt(run, fake.prepared(run), words))
    assert numbers(events) == numbers(whole)
    assert [event.state for event in of(StateEvent, events)] == ["paused", "running"]
    paused = next(index for index, event in enumerate(events) if isinstance(event, StateEvent))
    assert isinstance(events[paused - 1], CheckpointEvent) and events[paused - 1].step == 2


def test_a_paused_run_can_be_stopped(run: RunDirectory, fake: Any) -> None:
    events = list(fake.attempt(run, fake.prepared(run), Words({2: ["pause"], 4: ["stop"]})))
    assert [event.state for event in of(StateEvent, events)] == ["paused", "stopping"]
    assert of(StepEvent, events)[-1].step == 2
    assert of(CheckpointEvent, events)[-1].step == 2
