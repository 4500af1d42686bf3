"""A training run's settings: flags over environment over TOML over defaults, checked once, frozen.

The only module that reads the environment.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from nf4tui.lora import PROJECTIONS, LoraConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One run. Field names are the long flags' names. None means automatic, as described by the flag."""

    data: tuple[str, ...]
    model: str
    out: str
    adapter: str | None = None
    device: str = "auto"  # auto | cuda | cpu
    epochs: int | None = None  # None with steps None: 3 epochs
    steps: int | None = None
    batch_size: int = 4
    grad_accum: int = 1
    max_seq_len: int = 2048
    packing: bool = True
    weights: tuple[float, ...] | None = None  # one for each of `data`; None: 1
    format: str = "auto"  # auto | messages | conversations | prompt-completion | alpaca | text
    overlong: str = "drop"  # drop | truncate | error
    skip_bad: bool = False
    supervise: str = "all"  # last | all | completion
    rank: int = 16
    alpha: float | None = None  # None: 2 * rank
    rslora: bool = False
    targets: tuple[str, ...] = PROJECTIONS
    dropout: float = 0.0
    lr: float | None = None  # None: automatic, by rank
    schedule: str = "cosine"  # cosine | linear | constant
    warmup: float = 0.03  # below 1: share of all steps; else steps
    clip: float = 1.0
    weight_decay: float = 0.01
    eval_data: str | None = None
    eval_split: float | None = None
    eval_every: int | None = None  # None: once an epoch, where there is validation data
    save_every: int | None = None  # None: once an epoch, at most every 500 steps
    keep: int = 3
    early_stop: int | None = None  # validations without improvement; None: never
    seed: int = 0
    parity_every: int | None = None  # None: every 50 steps, and at step 1
    parity: str = "warn"  # warn | stop | off

    @property
    def lora(self) -> LoraConfig:
        return LoraConfig(
            rank=self.rank,
            alpha=2.0 * self.rank if self.alpha is None else self.alpha,
            rslora=self.rslora,
            targets=self.targets,
            dropout=self.dropout,
        )


def terminal_is_dumb() -> bool:
    """Whether TERM names a terminal that cannot move its cursor, or no terminal at all."""
    return os.environ.get("TERM", "") in ("", "dumb")


def thread_limit() -> int | None:
    """The number of threads that the environment allows OpenBLAS, None where it says nothing."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return None


def environment_settings() -> dict[str, str]:
    """Settings given as NF4TUI_* variables, by field name: NF4TUI_BATCH_SIZE=8 is batch_size."""
    prefix = "NF4TUI_"
    return {
        name[len(prefix) :].lower(): value for name, value in os.environ.items() if name.startswith(prefix)
    }


def cache_directory() -> Path:
    """Where files are kept that can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "nf4tui"


def user_settings_path() -> Path:
    """The user's configuration file, which may name a default model."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "nf4tui" / "config.toml"


def terminal_facts() -> dict[str, str]:
    """What the environment says of the terminal, for `doctor`."""
    return {name: os.environ.get(name, "") for name in ("TERM", "COLORTERM", "NO_COLOR", "LANG")}


def ask_numba_to_simulate() -> None:
    """Has Numba, once it is imported in this process, simulate a GPU."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
