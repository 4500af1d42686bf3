"""The numbers of now and the facts of a run as rows of text: what the two panes of facts show."""

from collections.abc import Iterator
from dataclasses import dataclass

from nf4tui.dashboard.history import History
from nf4tui.dashboard.palette import GREEN, MUTED, VERMILLION
from nf4tui.dashboard.text import scientific
from nf4tui.headless import number
from nf4tui.runs.status import Status


@dataclass(frozen=True, slots=True)
class Row:
    """label: at the left. value: raw, from data perhaps. style: of the value."""

    label: str
    value: str
    style: str = ""


def now_rows(history: History) -> Iterator[Row]:
    """The newest step, validation, health and checkpoint."""
    step = history.step
    if step is not None:
        yield Row("loss", number(step.loss, ".4f"))
    if history.evaluation is not None:
        yield Row("validation", number(history.evaluation.loss, ".4f"))
    if history.best is not None:
        yield Row("  best", f"{number(history.best.loss, '.4f')} at step {history.best.step}")
    if step is not None:
        seconds = max(step.step_ms, 1e-3) / 1e3
        padding = 1 - step.tokens / step.padded_tokens if step.padded_tokens else 0.0
        yield Row("epoch", f"{step.epoch:.2f}")
        yield Row("lr", scientific(step.lr, 3))
        yield Row("grad norm", number(step.grad_norm, ".4f"))
        yield Row("tokens/s", f"{step.tokens / seconds:,.0f} real")
        yield Row("", f"{step.supervised_tokens / seconds:,.0f} supervised")
        yield Row("step time", f"{step.step_ms:,.1f} ms")
        yield Row("padding", f"{padding:.0%}")
    yield from _health(history)
    if history.checkpoint is not None:
        yield Row("saved", f"step {history.checkpoint.step}")


def _health(history: History) -> Iterator[Row]:
    steps = history.nonfinite_steps
    if history.culprit is None:
        yield Row("non-finite", "0", GREEN)
    else:
        where = f"{len(steps)} step{'s' if len(steps) > 1 else ''}"
        yield Row("non-finite", f"{history.nonfinite_total:,} in {where}", f"bold {VERMILLION}")
        yield Row("  newest", f"step {history.culprit.step}, not applied", VERMILLION)
        yield Row("", history.culprit.nonfinite_tensor or "the loss", VERMILLION)
    if history.precision is not None:
        yield Row("precision", f"{scientific(history.precision.rel_l2)} relL2 of logits")
        yield Row("  worst", f"{scientific(history.precision.worst.rel_l2)} relL2 of")
        yield Row("", history.precision.worst.tap)
    if history.parity is not None:
        ok = history.parity.ok
        yield Row("parity", "ok" if ok else "NOT OK", GREEN if ok else f"bold {VERMILLION}")
        yield Row("  worst", f"{number(history.parity.worst.ratio, '.2f')} of the budget at")
        yield Row("", history.parity.worst.tap)


def run_rows(history: History, settings: dict[str, str], status: Status | None) -> Iterator[Row]:
    """What is trained on what, by whom."""
    for label, value in settings.items():
        yield Row(label, value)
    start = history.start
    if start is not None:
        yield Row("device", start.device)
        for name, count in start.data.items():
            if count:
                yield Row("", f"{count:,} {name.replace('_', ' ')}", MUTED)
    if status is not None:
        attempt = "" if start is None or start.attempt == 1 else f", attempt {start.attempt}"
        yield Row("process", f"{status.pid} on {status.host}{attempt}")
    if history.done is not None:
        yield Row("adapter", history.done.adapter, GREEN)
    if history.error is not None:
        yield Row("error", history.error.message, VERMILLION)
