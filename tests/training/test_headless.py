"""Plain output: aligned, one line an event, nothing of the data's controls, a bar on terminals only."""

import io
import json
import math
from typing import Any

import pytest

from nf4tui.headless import Headless, log_line
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    LogEvent,
    LogitsError,
    ParityEvent,
    PrecisionEvent,
    StartEvent,
    StateEvent,
    StepEvent,
    TapError,
    TapRatio,
)

START = StartEvent(
    attempt=1,
    resumed_from=None,
    versions={},
    model="some/model",
    device="cpu",
    total_steps=300,
    pid=1,
    data={"samples": 3, "bad": 0},
)


def step(number: int, **changes: Any) -> StepEvent:
    values: dict[str, Any] = {
        "step": number,
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
        "step_ms": 100.0,
    }
    return StepEvent(**{**values, **changes})


def test_step_lines_are_aligned_whatever_their_numbers() -> None:
    lines = [
        log_line(step(1), 300),
        log_line(step(300, loss=1234.5, grad_norm=99.25, tokens=99_999, lr=2.5e-3), 300),
        log_line(step(7, loss=math.nan, grad_norm=math.inf), 300),
    ]
    for column in ("loss", "lr", "grad norm", "tokens", "tok/s"):
        assert len({line.index(column) for line in lines}) == 1


def test_a_step_line_has_real_and_supervised_tokens_a_second() -> None:
    line = log_line(step(12), 300)
    assert " ".join(line.split()) == (
        "step 12/300 loss 2.3100 lr 1.00e-05 grad norm 0.8000 tokens 512 tok/s 5120 (3010 supervised) 100.0 ms"
    )


def test_what_is_not_finite_is_said_with_its_tensor_and_never_shown_as_a_number() -> None:
    event = step(3, loss=math.nan, grad_norm=math.inf, nonfinite=4, nonfinite_tensor="loss", applied=False)
    line = log_line(event, 300)
    assert line.count("non-finite") == 3
    assert "NOT APPLIED: 4 non-finite, first in loss" in line
    for text in ("nan", "inf ", "0.0000"):
        assert text not in line


HOSTILE = "a\nb\x1b[2J\x9b31m\u202ec\x7f"
EVENTS_WITH_TEXT = [
    LogEvent(level="warning", message=HOSTILE),
    ErrorEvent(message=HOSTILE),
    CheckpointEvent(step=1, path=HOSTILE),
    DoneEvent(step=1, adapter=HOSTILE, best_step=1, reloaded_loss=1.0),
    StateEvent(state=HOSTILE),
    PrecisionEvent(step=1, rel_l2=1.0, worst=TapError(tap=HOSTILE, rel_l2=1.0)),
    ParityEvent(
        step=1,
        worst=TapRatio(tap=HOSTILE, ratio=1.0),
        logits=LogitsError(rel_l2=1.0, ratio=1.0),
        loss_gpu=1.0,
        loss_cpu=1.0,
        ok=False,
    ),
    step(1, nonfinite=1, nonfinite_tensor=HOSTILE, applied=False),
    StartEvent(
        attempt=2,
        resumed_from=5,
        versions={},
        model=HOSTILE,
        device="cpu",
        total_steps=1,
        pid=1,
        data={HOSTILE: 1},
    ),
]


@pytest.mark.parametrize("event", EVENTS_WITH_TEXT, ids=lambda event: event.event)
def test_text_of_any_origin_stays_one_line_without_controls(event: Any) -> None:
    line = log_line(event, 300)
    assert "a" in line
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in line)
    assert "\u202e" not in line


def test_a_bar_stands_under_the_lines_only_where_it_may() -> None:
    out = io.StringIO()
    shown = Headless(out, as_json=False, bar=True)
    for event in (START, step(150), EvalEvent(step=150, loss=1.0, tokens=5, samples=1)):
        shown.show(event)
    assert "[###############...............]  50% 00:00:15 left\r\x1b[Keval" in out.getvalue()
    plain = io.StringIO()
    shown = Headless(plain, as_json=False, bar=False)
    for event in (START, step(150)):
        shown.show(event)
    assert plain.getvalue() == f"{log_line(START)}\n{log_line(step(150), 300)}\n"


def test_json_never_has_a_bar_and_holds_the_event() -> None:
    out = io.StringIO()
    Headless(out, as_json=True, bar=True).show(step(1, loss=math.nan))
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue())["loss"] is None


def test_an_error_is_left_to_standard_error_but_for_json() -> None:
    out = io.StringIO()
    Headless(out, as_json=False, bar=False).show(ErrorEvent(message="no"))
    assert out.getvalue() == ""
    Headless(out, as_json=True, bar=False).show(ErrorEvent(message="no"))
    assert json.loads(out.getvalue())["message"] == "no"
