"""Events survive the trip through events.jsonl, torn lines and growing files included."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.errors import InputError
from nf4tui.runs.event_log import EventLog, EventTail, read_events
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    LogEvent,
    LogitsError,
    ParityEvent,
    PrecisionEvent,
    StartEvent,
    StateEvent,
    StepEvent,
    TapError,
    TapRatio,
    current,
    parse,
    to_json,
    to_line,
)


def step_event(step: int, **changes: object) -> StepEvent:
    values: dict[str, object] = {
        "step": step,
        "loss": 2.31,
        "lr": 1e-5,
        "grad_norm": 0.8,
        "tokens": 512,
        "supervised_tokens": 301,
        "padded_tokens": 640,
        "nonfinite": 0,
        "nonfinite_tensor": None,
        "applied": True,
        "epoch": 0.25,
        "step_ms": 12.1,
    }
    return StepEvent(**{**values, **changes})  # type: ignore[arg-type]


def start_event(attempt: int, resumed_from: int | None) -> StartEvent:
    return StartEvent(
        attempt=attempt,
        resumed_from=resumed_from,
        versions={"numpy": "2.4.0"},
        model="m",
        device="cpu",
        total_steps=9,
        pid=1,
        data={"samples": 3},
    )


ONE_OF_EACH: list[Event] = [
    start_event(1, None),
    start_event(2, 7),
    step_event(1),
    EvalEvent(step=50, loss=1.5, tokens=100, samples=4, best=True),
    PrecisionEvent(step=1, rel_l2=1e-7, worst=TapError(tap="layers.0.attn.q_rope", rel_l2=2e-7)),
    ParityEvent(
        step=50,
        worst=TapRatio(tap="layers.3.attn.q_rope", ratio=1.02),
        logits=LogitsError(rel_l2=1e-3, ratio=1.0),
        loss_gpu=2.0,
        loss_cpu=2.0,
        ok=True,
    ),
    CheckpointEvent(step=50, path="runs/é\u2028/checkpoints/step-000050"),
    LogEvent(level="warning", message="two\nlines and \x1b[2J"),
    StateEvent(state="paused"),
    DoneEvent(step=300, adapter="runs/x/adapter", best_step=None, reloaded_loss=1.0),
    ErrorEvent(message="no"),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.event)
def test_every_event_is_read_back_as_it_was_written(event: Event) -> None:
    line = to_line(event)
    assert line.endswith("\n") and line.count("\n") == 1 and line.isascii()
    assert json.loads(line)["schema"] == 1
    assert parse(line) == event


def test_the_interface_fields_of_a_step_are_there_and_the_event_comes_first() -> None:
    values = json.loads(to_json(step_event(1)))
    assert next(iter(values)) == "event"
    assert values.items() >= {"event": "step", "step": 1, "loss": 2.31, "lr": 1e-5, "grad_norm": 0.8}.items()
    assert {"tokens", "supervised_tokens", "nonfinite", "step_ms", "time"} <= values.keys()
    assert "schema" not in values


@given(st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_number_that_is_not_finite_is_null_and_never_a_number_again(value: float) -> None:
    line = to_line(step_event(3, loss=value, nonfinite=1, nonfinite_tensor="loss", applied=False))
    assert json.loads(line)["loss"] is None
    event = parse(line)
    assert isinstance(event, StepEvent) and math.isnan(event.loss)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        '"step"',
        "{}",
        '{"event": "nonsense"}',
        '{"event": "step", "step": 1}',
        '{"event": "checkpoint", "step": "x", "path": "p"}',
        '{"event": "checkpoint", "step": 1, "path": "p", "schema": 2}',
        "[" * 100_000,
        to_line(step_event(1))[:40],
    ],
)
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        parse(line)


def test_fields_of_a_later_version_are_ignored() -> None:
    values = {**json.loads(to_line(StateEvent(state="running"))), "mood": "good"}
    assert isinstance(parse(json.dumps(values)), StateEvent)


def test_a_torn_last_line_is_cut_off_before_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, second, third = (step_event(step) for step in (1, 2, 3))
    whole = to_line(first) + to_line(second)
    for cut in range(len(to_line(first)), len(whole)):
        path.write_text(whole[:cut])
        with EventLog(path) as log:
            log.append(third)
        assert read_events(path) == [first, third]


def test_a_torn_line_longer_than_a_block_is_cut_off_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(step_event(1)) + "x" * (3 << 20))
    with EventLog(path) as log:
        log.append(step_event(2))
    assert [event.step for event in read_events(path) if isinstance(event, StepEvent)] == [1, 2]


def test_a_log_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "events.jsonl").symlink_to("theirs")
    with pytest.raises(OSError):
        EventLog(tmp_path / "events.jsonl")
    assert (tmp_path / "theirs").read_text() == "precious"


def test_a_tail_returns_each_complete_event_once_wherever_the_writes_break(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    data = "".join(to_line(event) for event in ONE_OF_EACH).encode()
    seen: list[Event] = []
    with path.open("ab") as file:
        for start in range(0, len(data), 37):
            file.write(data[start : start + 37])
            file.flush()
            seen += tail.read()
    assert seen == ONE_OF_EACH
    assert tail.read() == []


def test_a_tail_goes_on_after_a_torn_line_was_mended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(step_event(1)) + '{"event": "st')
    tail = EventTail(path)
    first = tail.read()
    with EventLog(path) as log:
        log.append(step_event(2))
    assert [*first, *tail.read()] == read_events(path)


def test_a_tail_reads_a_file_replaced_by_a_shorter_one_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(step_event(1)) * 3)
    tail = EventTail(path)
    assert len(tail.read()) == 3
    path.write_text(to_line(step_event(9)))
    assert [event.step for event in tail.read() if isinstance(event, StepEvent)] == [9]


def test_a_foreign_line_is_a_warning_that_names_its_number(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(to_line(step_event(1)).encode() + b"\xff\x00\n" + to_line(step_event(2)).encode())
    first, warning, second = read_events(path)
    assert isinstance(warning, LogEvent) and "events.jsonl:2:" in warning.message
    assert isinstance(first, StepEvent) and isinstance(second, StepEvent)


def test_steps_that_a_later_attempt_took_again_are_counted_once() -> None:
    again = step_event(3, step_ms=99.0)
    events = [
        start_event(1, None),
        step_event(1),
        step_event(2),
        CheckpointEvent(step=2, path="p"),
        step_event(3),
        step_event(4),
        start_event(2, 2),
        again,
    ]
    steps = [event for event in current(events) if isinstance(event, StepEvent)]
    assert [event.step for event in steps] == [1, 2, 3]
    assert steps[2] is again
    assert any(isinstance(event, CheckpointEvent) for event in current(events))
