"""What a run refuses before it writes anything, and what it makes of its settings."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nf4tui.config import TrainConfig
from nf4tui.errors import CannotRunError, InputError
from nf4tui.models.adapter import read_adapter
from nf4tui.runs.events import (
    DoneEvent,
    Event,
    LogEvent,
    PrecisionEvent,
    StepEvent,
)
from nf4tui.runs.settings import read_settings
from nf4tui.training import session
from nf4tui.training.prepare import prepare
from nf4tui.training.signals import StopSignals


def attempt(config: TrainConfig, *explicit: str, resume: bool = False) -> Iterator[Event]:
    return session.attempt(config, resume=resume, explicit=frozenset(explicit), signals=StopSignals())


def train(config: TrainConfig, *explicit: str, resume: bool = False) -> list[Event]:
    return list(attempt(config, *explicit, resume=resume))


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, LogEvent) and event.level == "warning"]


REFUSED = {
    "no data": ({"data": ("nowhere.jsonl",)}, "nowhere.jsonl"),
    "no model": ({"model": "/nowhere/model"}, "/nowhere/model"),
    "no adapter": ({"adapter": "/nowhere/adapter"}, "/nowhere/adapter"),
    "no validation data": ({"eval_split": None, "eval_data": "nowhere.jsonl"}, "nowhere.jsonl"),
    "two kinds of validation": ({"eval_data": "x.jsonl"}, "--eval-data and --eval-split"),
    "epochs and steps": ({"epochs": 1}, "--epochs and --steps"),
    "early stop without validation": (
        {"eval_split": None, "eval_every": None, "early_stop": 1},
        "--early-stop 1: needs validation data",
    ),
    "a window beyond the model's": ({"max_seq_len": 129}, "--max-seq-len 129: the model takes at most 128"),
    "nothing fits the window": ({"max_seq_len": 4}, "nothing to learn from"),
    "everything held out": ({"eval_split": 0.9999}, "--eval-split"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(
    tmp_path: Path, tiny: Any, case: str
) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        train(tiny.config(tmp_path / "run", **changes), "max_seq_len")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_refused_and_nothing_is_written(tmp_path: Path, tiny: Any) -> None:
    with pytest.raises(CannotRunError):
        train(tiny.config(tmp_path / "run", device="cuda"))
    assert not (tmp_path / "run").exists()


def test_an_out_that_is_in_the_way_is_refused_before_anything_is_loaded(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").write_text("mine")
    monkeypatch.setattr(session, "prepare", None)
    with pytest.raises(InputError, match="in the way"):
        train(tiny.config(tmp_path / "run"))
    assert (tmp_path / "run").read_text() == "mine"


def test_a_default_window_is_made_to_fit_the_model(tmp_path: Path, tiny: Any) -> None:
    train(tiny.config(tmp_path / "run", max_seq_len=2048, steps=1))
    assert read_settings(tmp_path / "run/config.toml").max_seq_len == 128


def test_the_start_event_counts_the_data_and_the_run_follows_its_defaults(tmp_path: Path, tiny: Any) -> None:
    prepared = prepare(
        tiny.config(
            tmp_path / "run", steps=None, eval_every=None, save_every=None, parity_every=None, lr=None
        )
    )
    epoch = prepared.plan.steps_per_epoch
    assert (prepared.total_steps, prepared.eval_every, prepared.save_every) == (3 * epoch, epoch, epoch)
    assert prepared.probe_every == 50
    assert max(prepared.update(step).lr for step in range(1, 3 * epoch + 1)) == 2e-4
    assert prepared.counts["samples"] + prepared.counts["validation_samples"] == 24
    assert prepared.counts["supervised_tokens"] > 0


def test_records_that_are_lost_are_said_at_the_start(tmp_path: Path, tiny: Any) -> None:
    data = tmp_path / "data.jsonl"
    long = {"messages": [{"role": "user", "content": "a" * 500}, {"role": "assistant", "content": "b"}]}
    data.write_text(f"{tiny.data.read_text()}{json.dumps(long)}\nnot json\n")
    events = train(tiny.config(tmp_path / "run", data=(str(data),), skip_bad=True, steps=1))
    said = warnings(events)
    assert any("1 records cannot be used" in text and "data.jsonl:26" in text for text in said)
    assert any("1 records are longer than --max-seq-len 128" in text for text in said)


def test_training_goes_on_from_an_adapter_and_takes_over_its_shape(tmp_path: Path, tiny: Any) -> None:
    first = tiny.config(tmp_path / "first", rank=3, alpha=5.0, rslora=True, targets=("q_proj", "up_proj"))
    train(first)
    second = tiny.config(tmp_path / "second", adapter=str(tmp_path / "first/adapter"))
    prepared = prepare(second)
    lora, tensors = read_adapter(tmp_path / "first/adapter", prepared.model)
    path = "layers.0.attn.q_proj"
    assert prepared.lora.scaling_of(path) == lora.scaling_of(path) == first.lora.scaling_of(path)
    assert prepared.engine.adapters().keys() == tensors.keys()
    assert all((prepared.engine.adapters()[name] == tensor).all() for name, tensor in tensors.items())
    with pytest.raises(InputError, match=r"--rank 2: the adapter .* has 3"):
        prepare(second, frozenset({"rank"}))
    assert isinstance(train(second)[-1], DoneEvent)
    assert read_settings(tmp_path / "second/config.toml").rank == 3


def test_precision_is_probed_at_the_first_step_and_every_so_many(tmp_path: Path, tiny: Any) -> None:
    events = train(tiny.config(tmp_path / "run"))
    probes = [event for event in events if isinstance(event, PrecisionEvent)]
    assert [event.step for event in probes] == [1, 10, 20]
    assert all(0 < event.rel_l2 < 1e-5 and event.rel_l2 <= event.worst.rel_l2 < 1e-3 for event in probes)


def test_parity_off_leaves_the_probe_out_and_changes_no_number(tmp_path: Path, tiny: Any) -> None:
    with_probe = train(tiny.config(tmp_path / "with"))
    without = train(tiny.config(tmp_path / "without", parity="off"))
    assert not [event for event in without if isinstance(event, PrecisionEvent)]
    assert [event.loss for event in with_probe if isinstance(event, StepEvent)] == [
        event.loss for event in without if isinstance(event, StepEvent)
    ]


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(8, 1), (1, 8), (2, 4)])
def test_eight_rows_a_step_are_one_step_however_they_are_accumulated(
    tmp_path: Path, tiny: Any, batch_size: int, grad_accum: int
) -> None:
    base = tiny.config(tmp_path / "base", dropout=0.0, steps=6, batch_size=8)
    expected = [event for event in train(base) if isinstance(event, StepEvent)]
    changed = dataclasses.replace(
        base, out=str(tmp_path / "run"), batch_size=batch_size, grad_accum=grad_accum
    )
    for event, other in zip(
        expected, [event for event in train(changed) if isinstance(event, StepEvent)], strict=True
    ):
        assert other.loss == pytest.approx(event.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(event.grad_norm, rel=1e-5)
        assert (other.tokens, other.supervised_tokens) == (event.tokens, event.supervised_tokens)


def test_a_validation_file_is_evaluated_whole_and_never_trained_on(tmp_path: Path, tiny: Any) -> None:
    lines = tiny.data.read_text().splitlines(keepends=True)
    (tmp_path / "held-out.jsonl").write_text("".join(lines[:5]))
    prepared = prepare(
        tiny.config(tmp_path / "run", eval_split=None, eval_data=str(tmp_path / "held-out.jsonl"))
    )
    assert prepared.validation_samples == 5
    assert prepared.counts["samples"] == 24
    tokens = sum(batch.supervised_tokens for batch in prepared.validation)
    assert 0 < tokens < prepared.counts["supervised_tokens"] / 4
