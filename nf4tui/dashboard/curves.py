"""Which charts the dashboard has, and which series of a run each of them shows."""

from collections.abc import Callable
from dataclasses import dataclass

from nf4tui.dashboard.history import History
from nf4tui.dashboard.series import Series


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """label: in the legend. form: the format of its newest value there. points: mark each point if few."""

    label: str
    series: Callable[[History], Series]
    form: str
    points: bool = False


@dataclass(frozen=True, slots=True)
class ChartPlan:
    """name: also the widget's id. optional: shown only once there is something to show."""

    name: str
    title: str
    curves: tuple[CurvePlan, ...]
    log: bool = False
    optional: bool = False
    gaps: bool = False  # mark the steps that were not finite, whatever the curves say


LOSS = ChartPlan(
    "loss",
    "loss",
    (
        CurvePlan("train", lambda history: history.loss, ".4f"),
        CurvePlan("validation", lambda history: history.validation, ".4f", points=True),
    ),
    gaps=True,
)
LEARNING_RATE = ChartPlan(
    "learning-rate", "learning rate", (CurvePlan("", lambda history: history.lr, ".2e"),)
)
GRAD_NORM = ChartPlan("grad-norm", "grad norm", (CurvePlan("", lambda history: history.grad_norm, ".3f"),))
THROUGHPUT = ChartPlan(
    "throughput",
    "tokens/s",
    (
        CurvePlan("real", lambda history: history.tokens, ",.0f"),
        CurvePlan("supervised", lambda history: history.supervised, ",.0f"),
    ),
)
# Two precisions of one source: this shows rounding, and cannot show that the model is right.
PRECISION = ChartPlan(
    "precision",
    "precision, float32 to float64",
    (
        CurvePlan("logits", lambda history: history.precision_logits, ".1e", points=True),
        CurvePlan("worst tensor", lambda history: history.precision_worst, ".1e", points=True),
    ),
    log=True,
    optional=True,
)
SMALL_CHARTS = (LEARNING_RATE, GRAD_NORM, THROUGHPUT, PRECISION)
