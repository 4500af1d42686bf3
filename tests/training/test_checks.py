"""Values that no run can have are refused by flag, value and range."""

import dataclasses
import math
from typing import Any

import pytest

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.training.checks import check_settings

GOOD = TrainConfig(data=("d.jsonl",), model="m", out="o", eval_split=0.1)

BAD: list[tuple[str, Any]] = [
    *((name, 0) for name in ("epochs", "steps", "batch_size", "grad_accum", "rank", "eval_every")),
    *((name, -1) for name in ("save_every", "keep", "early_stop", "parity_every", "seed")),
    *((name, value) for name in ("lr", "alpha") for value in (0.0, -1.0, math.nan, math.inf)),
    *((name, value) for name in ("warmup", "clip", "weight_decay") for value in (-0.1, math.nan, math.inf)),
    *(("dropout", value) for value in (-0.1, 1.0, math.nan)),
    ("seed", 2**63),
    ("targets", ()),
    ("targets", ("q_proj", "lm_head")),
    ("schedule", "cosin"),
    ("parity", "maybe"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_out_of_range_is_refused_by_its_flag(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^--{name.replace('_', '-')} .*(must|needs)"):
        check_settings(dataclasses.replace(GOOD, **{name: value}))


def test_the_defaults_and_the_ends_of_the_ranges_are_accepted() -> None:
    check_settings(GOOD)
    check_settings(
        dataclasses.replace(
            GOOD, rank=1, keep=1, warmup=0.0, clip=0.0, weight_decay=0.0, dropout=0.99, seed=0
        )
    )
