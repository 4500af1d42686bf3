"""Settings that no run can have: values out of range, and flags that contradict each other.

They come from flags, environment, TOML or a run's config.toml, so they are checked here, where all meet.
"""

import math

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS
from nf4tui.schedule import SCHEDULES

_AT_LEAST_ONE = (
    "epochs",
    "steps",
    "batch_size",
    "grad_accum",
    "rank",
    "eval_every",
    "save_every",
    "keep",
    "early_stop",
    "parity_every",
)
_POSITIVE = ("alpha", "lr")
_NOT_NEGATIVE = ("warmup", "clip", "weight_decay")
_CHOICES = {"schedule": SCHEDULES, "parity": ("warn", "stop", "off")}
_SEEDS = 2**63  # a seed is one key word of the random generators, and a TOML integer


def check_settings(config: TrainConfig) -> None:
    """Raises InputError that names the flag, its value and what it may be. The data's own settings are
    checked where data is read, the device where it is chosen."""
    for name in _AT_LEAST_ONE:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise _refusal(name, value, "must be at least 1")
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise _refusal(name, value, "must be a positive number")
    for name in _NOT_NEGATIVE:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise _refusal(name, value, "must be 0 or a positive number")
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise _refusal(name, getattr(config, name), f"must be one of {', '.join(choices)}")
    if not 0 <= config.dropout < 1:
        raise _refusal("dropout", config.dropout, "must be at least 0 and below 1")
    if not 0 <= config.seed < _SEEDS:
        raise _refusal("seed", config.seed, "must be from 0 to 2^63 - 1")
    if not config.targets or not set(config.targets) <= set(PROJECTIONS):
        raise _refusal("targets", ",".join(config.targets), f"must name some of {', '.join(PROJECTIONS)}")
    _check_contradictions(config)


def _check_contradictions(config: TrainConfig) -> None:
    if config.epochs is not None and config.steps is not None:
        raise InputError("--epochs and --steps: give one of them")
    if config.eval_data is not None and config.eval_split is not None:
        raise InputError("--eval-data and --eval-split: give one of them")
    if config.eval_data is None and config.eval_split is None:
        for name in ("eval_every", "early_stop"):
            if getattr(config, name) is not None:
                what = "needs validation data, --eval-data FILE or --eval-split SHARE"
                raise _refusal(name, getattr(config, name), what)


def _refusal(name: str, value: object, what: str) -> InputError:
    return InputError(f"--{name.replace('_', '-')} {value}: {what}")
