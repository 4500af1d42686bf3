"""Settings: flags over environment over TOML over defaults, each source with its own errors."""

from pathlib import Path
from typing import Any

import pytest

from nf4tui.config_sources import merged
from nf4tui.errors import InputError


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_environment_over_toml(tmp_path: Path) -> None:
    path = toml(tmp_path, "rank = 1\nbatch-size = 1\nseed = 1\n")
    found = merged({"rank": 3}, path, {"rank": "2", "batch_size": "2"})
    assert found == {"rank": 3, "batch_size": 2, "seed": 1}


def test_what_nobody_gave_is_left_out() -> None:
    assert merged({}, None, {}) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("max-seq-len = 64", {"max_seq_len": 64}),
        ("max_seq_len = 64", {"max_seq_len": 64}),
        ('targets = ["q_proj", "v_proj"]', {"targets": ("q_proj", "v_proj")}),
        ('targets = "q_proj, v_proj"', {"targets": ("q_proj", "v_proj")}),
        ('data = "a,b.jsonl"', {"data": ("a,b.jsonl",)}),
        ("alpha = 8", {"alpha": 8.0}),
        ('alpha = "auto"', {"alpha": None}),
        ("packing = false", {"packing": False}),
        ('model = "auto"', {"model": "auto"}),
    ],
)
def test_toml_keys_are_flag_names_and_have_toml_types(
    tmp_path: Path, text: str, found: dict[str, Any]
) -> None:
    result = merged({}, toml(tmp_path, text), {})
    assert result == found
    assert [type(value) for value in result.values()] == [type(value) for value in found.values()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnak = 3", "settings.toml: there is no setting 'rnak'; did you mean 'rank'?"),
        ("zzz = 3", "settings.toml: there is no setting 'zzz'"),
        ('rank = "3"', "settings.toml: rank = '3': must be a whole number"),
        ("rank = 3.0", "settings.toml: rank = 3.0: must be a whole number"),
        ("rank = true", "settings.toml: rank = True: must be a whole number"),
        ("packing = 1", "settings.toml: packing = 1: must be true or false"),
        ("targets = [1]", "settings.toml: targets = [1]: must be a list of text"),
        ('lr = "fast"', "settings.toml: lr = 'fast': must be a number, or 'auto'"),
        ("[train]\nrank = 3", "settings.toml: there is no setting 'train'"),
        ("max-seq-len = 3\nmax_seq_len = 3", "given twice"),
        ("rank = ", "settings.toml: not valid TOML"),
    ],
)
def test_wrong_toml_is_refused_by_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        merged({}, toml(tmp_path, text), {})
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_toml_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b'model = "\xff"')
    with pytest.raises(InputError, match="not valid TOML"):
        merged({}, path, {})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rank", "8", 8),
        ("lr", "1e-3", 1e-3),
        ("lr", "auto", None),
        ("packing", "no", False),
        ("rslora", "TRUE", True),
        ("data", "a.jsonl,b.jsonl", ("a.jsonl", "b.jsonl")),
    ],
)
def test_the_environment_holds_text(name: str, text: str, value: Any) -> None:
    assert merged({}, None, {name: text}) == {name: value}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rank", "many", "environment variable NF4TUI_RANK 'many': must be a whole number"),
        ("packing", "2", "environment variable NF4TUI_PACKING '2': must be true or false"),
        ("rnk", "2", "environment variable NF4TUI_RNK: there is no setting 'rnk'; did you mean 'rank'?"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        merged({}, None, {name: text})
    assert message == str(raised.value)


def test_the_real_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF4TUI_BATCH_SIZE", "7")
    assert merged({}, None)["batch_size"] == 7
