"""The learning rate as a pure function of (step, total steps): a resumed run needs no scheduler state.

Warm-up over w steps, then cosine, linear or constant, with the peak at step w + 1:
    step <= w:  peak * step / (w + 1)
    step >  w:  peak * shape(p),  p = (step - w - 1) / (total - w) in [0, 1)
Steps count from 1; neither the first nor the last one has a rate of 0, which would waste its data.
"""

import math

SCHEDULES = ("cosine", "linear", "constant")


def auto_lr(rank: int) -> float:
    """The default peak for a LoRA rank: 2e-4 up to 32, 1e-4 at 64, 5e-5 at 128, 2.5e-5 at 256.

    The points lie on one line in log-log, rate * rank = 6.4e-3, which also gives the ranks between and
    beyond them.
    """
    return 6.4e-3 / max(rank, 32)


def warmup_steps(warmup: float, total: int) -> int:
    """`warmup` below 1 is a share of all steps, rounded up; from 1 on it is a number of steps."""
    return math.ceil(warmup * total) if warmup < 1 else int(warmup)


def learning_rate(step: int, total: int, *, peak: float, schedule: str, warmup: float) -> float:
    """The rate of `step`, 1 <= step <= total."""
    warm = warmup_steps(warmup, total)
    if step <= warm:
        return peak * step / (warm + 1)
    progress = (step - warm - 1) / (total - warm)
    match schedule:
        case "cosine":
            return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "linear":
            return peak * (1.0 - progress)
        case "constant":
            return peak
        case _:
            raise ValueError(f"unknown schedule {schedule!r}")
