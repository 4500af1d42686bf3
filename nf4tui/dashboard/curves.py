"""Which charts the dashboard has, and which series of a run each of them shows."""

from collections.abc import Callable
from dataclasses import dataclass

from nf4tui.dashboard.history import History
from nf4tui.dashboard.series import Series
from nf4tui.dashboard.text import compact, fixed, scientific


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """label: in the legend. form: writes its newest value there. points: mark each point if few."""

    label: str
    series: Callable[[History], Series]
    form: Callable[[float], str]
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
        CurvePlan("train", lambda history: history.loss, fixed),
        CurvePlan("validation", lambda history: history.validation, fixed, points=True),
    ),
    gaps=True,
)
LEARNING_RATE = ChartPlan(
    "learning-rate", "learning rate", (CurvePlan("", lambda history: history.lr, scientific),)
)
GRAD_NORM = ChartPlan("grad-norm", "grad norm", (CurvePlan("", lambda history: history.grad_norm, compact),))
THROUGHPUT = ChartPlan(
    "throughput",
    "tokens/s",
    (
        CurvePlan("real", lambda history: history.tokens, compact),
        CurvePlan("supervised", lambda history: history.supervised, compact),
    ),
)
# relL2 of float32 against float64 of one source: it shows rounding, and cannot show that the model is right.
PRECISION = ChartPlan(
    "precision",
    "precision",
    (
        CurvePlan("logits", lambda history: history.precision_logits, scientific, points=True),
        CurvePlan("worst", lambda history: history.precision_worst, scientific, points=True),
    ),
    log=True,
    optional=True,
)
SMALL_CHARTS = (LEARNING_RATE, GRAD_NORM, THROUGHPUT, PRECISION)
