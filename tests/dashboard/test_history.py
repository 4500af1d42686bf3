"""Events folded into series and facts: nothing is filtered, and a step taken twice is shown once."""

import math
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from nf4tui.dashboard.facts import now_rows, run_rows
from nf4tui.dashboard.history import History
from nf4tui.dashboard.series import Series
from nf4tui.runs.events import EvalEvent, LogitsError, ParityEvent, TapRatio


def fold(events: object) -> History:
    history = History()
    for event in events:  # type: ignore[attr-defined]
        history.add(event)
    return history


def words(history: History) -> str:
    return "\n".join(f"{row.label} {row.value}" for row in now_rows(history))


def test_a_whole_run_is_folded_into_its_series(simulated: ModuleType) -> None:
    history = fold(simulated.events(60))
    assert history.loss.steps.tolist() == [*range(1, 61)]
    assert history.validation.steps.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert len(history.precision_logits) == 7
    assert history.steps_taken == history.total_steps == 60
    assert history.seconds_left == 0


def test_steps_that_were_not_finite_are_counted_named_and_never_a_number(simulated: ModuleType) -> None:
    history = fold(simulated.events(60))
    assert history.nonfinite_steps == [25, 26]
    assert history.nonfinite_total == 34
    assert [
        step for step, loss in zip(history.loss.steps, history.loss.values, strict=True) if math.isnan(loss)
    ]
    assert "34 in 2 steps" in words(history)
    assert "step 26, not applied" in words(history)
    assert "layers.3.attn.q_proj.grad_lora_A" in words(history)
    now = fold([simulated.start(10), simulated.step(1, math.nan, nonfinite=3)])
    assert "loss non-finite" in words(now) and "grad norm non-finite" in words(now)


def test_a_resumed_attempt_takes_its_steps_again(simulated: ModuleType) -> None:
    history = fold(
        [
            simulated.start(20),
            *(simulated.step(number, 2.0, nonfinite=5 if number == 8 else 0) for number in range(1, 10)),
            EvalEvent(step=5, loss=1.5, tokens=10, samples=1),
            EvalEvent(step=9, loss=1.2, tokens=10, samples=1),
            simulated.start(20, attempt=2, resumed_from=5),
        ]
    )
    assert history.loss.steps.tolist() == [1, 2, 3, 4, 5]
    assert history.validation.steps.tolist() == [5]
    assert history.nonfinite_steps == [] and history.culprit is None
    assert history.resumes == [5]
    assert history.steps_taken == 5
    history.add(simulated.step(6, 1.0))
    assert history.loss.steps.tolist() == [1, 2, 3, 4, 5, 6] and history.loss.last == 1.0


def test_precision_is_never_called_parity(simulated: ModuleType) -> None:
    shown = words(fold(simulated.events(20)))
    assert "precision" in shown and "parity" not in shown


def test_parity_that_is_not_ok_says_so_and_where(simulated: ModuleType) -> None:
    worst = TapRatio(tap="layers.3.attn.q_rope", ratio=7.5)
    logits = LogitsError(rel_l2=0.1, ratio=7.0)
    parity = ParityEvent(step=1, worst=worst, logits=logits, loss_gpu=1.0, loss_cpu=1.1, ok=False)
    shown = words(fold([simulated.start(3), simulated.step(1, 1.0), parity]))
    assert "parity NOT OK" in shown and "7.50" in shown and "layers.3.attn.q_rope" in shown


def test_tokens_per_second_are_real_and_supervised_apart(simulated: ModuleType) -> None:
    shown = words(
        fold([simulated.start(3), simulated.step(1, 1.0, tokens=500, supervised_tokens=100, step_ms=100.0)])
    )
    assert "5,000 real" in shown and "1,000 supervised" in shown


def test_the_facts_of_a_run_tell_model_device_and_counts(simulated: ModuleType) -> None:
    rows = [*run_rows(fold([simulated.start(3)]), {"model": "m", "lora": "rank 16"}, None)]
    shown = "\n".join(f"{row.label} {row.value}" for row in rows)
    assert "model m" in shown and "device cpu" in shown and "20,411 supervised tokens" in shown


@given(st.lists(st.integers(0, 700), max_size=800))
def test_a_series_always_has_increasing_steps_and_the_newest_value_of_each(numbers: list[int]) -> None:
    series, expected = Series(), {}
    for order, number in enumerate(numbers):
        series.put(number, order)
        expected = {step: value for step, value in expected.items() if step < number} | {number: order}
    assert series.steps.tolist() == [*expected]
    assert series.values.tolist() == [*expected.values()]
    assert series.recent(300)[0].tolist() == [step for step in expected if step >= 300]
