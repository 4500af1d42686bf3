"""config.toml holds every setting exactly, and a resumed run may not change what it computes."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.runs.settings import (
    MAY_DIFFER,
    parse_settings,
    read_settings,
    resumed,
    to_toml,
    with_absolute_paths,
)

BASE = TrainConfig(data=("/d/a.jsonl",), model="hub/id", out="/runs/x")


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    number=st.floats(allow_nan=False, allow_infinity=False),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1),
    seed=st.integers(0, 2**63 - 1),
    flag=st.booleans(),
)
def test_settings_are_read_back_as_they_were_written(
    text: str, number: float, names: list[str], seed: int, flag: bool
) -> None:
    config = dataclasses.replace(
        BASE, model=text, lr=number, clip=number, data=tuple(names), seed=seed, packing=flag, eval_data=text
    )
    assert parse_settings(to_toml(config), "here") == config


def test_a_path_that_is_not_utf_8_is_refused_by_the_name_of_its_setting() -> None:
    with pytest.raises(InputError, match="model"):
        to_toml(dataclasses.replace(BASE, model="/m/\udcff"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rank = ", "TOML"),
        ("rang = 3", "rang"),
        ('rank = "3"', "rank"),
        ("rank = true", "rank"),
        ("lr = false", "lr"),
        ("data = [1]", "data"),
        ("rank = 3", "data"),
    ],
)
def test_a_broken_config_is_refused_with_file_and_setting(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"config\.toml: .*{what}"):
        read_settings(path)


def test_a_config_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"config\.toml: cannot be read"):
        read_settings(path)


OTHER = TrainConfig(
    data=("/d/b.jsonl",),
    model="other/id",
    out="/runs/y",
    adapter="/a",
    device="cuda",
    epochs=7,
    steps=9,
    batch_size=5,
    grad_accum=2,
    max_seq_len=99,
    packing=False,
    weights=(1.0, 2.5),
    format="messages",
    overlong="error",
    skip_bad=True,
    supervise="last",
    rank=3,
    alpha=4.0,
    rslora=True,
    targets=("q_proj",),
    dropout=0.1,
    lr=0.1,
    schedule="linear",
    warmup=3.0,
    clip=0.5,
    weight_decay=0.5,
    eval_data="/e",
    eval_split=0.2,
    eval_every=3,
    save_every=4,
    keep=9,
    early_stop=2,
    seed=8,
    parity_every=7,
    parity="off",
)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainConfig)])
def test_a_flag_given_on_resume_may_not_change_the_run_unless_it_changes_no_number(name: str) -> None:
    if name in MAY_DIFFER:
        assert getattr(resumed(BASE, OTHER, frozenset({name})), name) == getattr(OTHER, name)
        return
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} "):
        resumed(BASE, OTHER, frozenset({name}))


def test_flags_not_given_on_resume_are_the_runs_own() -> None:
    assert resumed(BASE, OTHER, frozenset()) == dataclasses.replace(BASE, out="/runs/y")


def test_flags_repeated_on_resume_are_accepted_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    stored = with_absolute_paths(TrainConfig(data=("a.jsonl",), model="model", out="/runs/x"))
    assert stored.data == (str(tmp_path / "a.jsonl"),)
    monkeypatch.chdir(tmp_path / "sub")
    given_again = TrainConfig(data=("../a.jsonl",), model=str(tmp_path / "model"), out="/runs/x")
    assert resumed(stored, given_again, frozenset({"data", "model"})) == stored
