"""Flags, settings and their documentation name the same things."""

import dataclasses

from nf4tui.cli_flags import TrainFlags
from nf4tui.config import TrainConfig


def test_train_has_a_flag_for_every_setting() -> None:
    flags = {field.name for field in dataclasses.fields(TrainFlags)}
    assert flags | {"data"} == {field.name for field in dataclasses.fields(TrainConfig)}
