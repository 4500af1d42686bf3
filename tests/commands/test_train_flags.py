"""nf4tui train from a command line: the run that its flags, TOML and environment describe."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
SMALL = ("--no-tui", "--steps", "1", "--rank", "1", "--max-seq-len", "64", "--parity", "off")


def settings(out: Path) -> dict[str, Any]:
    return tomllib.loads((out / "config.toml").read_text())


def test_every_source_reaches_the_run(tmp_path: Path, run: Run, data: Path, sample_model: Path) -> None:
    (tmp_path / "s.toml").write_text(f"model = {str(sample_model)!r}\nseed = 5\nkeep = 9\nclip = 2\n")
    found = run("train", data, *SMALL, "--out", "out", "--config", "s.toml", "--clip", "4", NF4TUI_KEEP="8")
    assert found.returncode == 0, found.stderr
    stored = settings(tmp_path / "out")
    assert (stored["seed"], stored["keep"], stored["clip"]) == (5, 8, 4.0)
    assert stored["model"] == str(sample_model)


def test_out_is_named_after_data_and_time_and_resume_finds_the_newest(
    tmp_path: Path, run: Run, data: Path, sample_model: Path
) -> None:
    (tmp_path / "runs" / "data-20200101-000000").mkdir(parents=True)
    found = run("train", data, *SMALL, "--model", sample_model)
    assert found.returncode == 0, found.stderr
    (out,) = (
        path for path in (tmp_path / "runs").glob("data-????????-??????") if (path / "adapter").is_dir()
    )
    again = run("train", data, "--no-tui", "--resume")
    assert again.returncode == 0 and f"{out}: already finished at step 1" in again.stdout
    by_name = run("train", "--resume", "--out", out, "--no-tui")
    assert by_name.returncode == 0 and "already finished" in by_name.stdout


def test_json_is_events_and_nothing_else(run: Run, data: Path, sample_model: Path) -> None:
    found = run("train", data, *SMALL, "--model", sample_model, "--out", "out", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    events = [json.loads(line)["event"] for line in found.stdout.splitlines()]
    assert events[0] == "start" and "step" in events and events[-1] == "done"


def test_data_under_sample_data_takes_the_sample_model(
    tmp_path: Path, run: Run, data: Path, sample_model: Path
) -> None:
    folder = tmp_path / "sample_data"
    folder.mkdir()
    data.rename(folder / "data.jsonl")
    (folder / "model").symlink_to(sample_model)
    found = run("train", folder / "data.jsonl", *SMALL, "--out", "out")
    assert found.returncode == 0, found.stderr
    assert settings(tmp_path / "out")["model"] == str(sample_model)


def test_the_users_configuration_names_the_default_model(
    tmp_path: Path, run: Run, data: Path, sample_model: Path
) -> None:
    path = tmp_path / "home" / ".config" / "nf4tui" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"model = {str(sample_model)!r}\n")
    assert run("train", data, *SMALL, "--out", "out").returncode == 0
    assert settings(tmp_path / "out")["model"] == str(sample_model)
    (tmp_path / "xdg" / "nf4tui").mkdir(parents=True)
    (tmp_path / "xdg" / "nf4tui" / "config.toml").write_text("modle = 'x'\n")
    found = run("train", data, *SMALL, "--out", "other", XDG_CONFIG_HOME=str(tmp_path / "xdg"))
    assert found.returncode == 2 and "there is no setting 'modle'" in found.stderr


@pytest.mark.parametrize(
    ("answer", "offered"), [("1\n", True), ("{model}\n", True), ("\n", False), ("9\n", False)]
)
def test_on_a_terminal_a_model_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_model: Path, answer: str, offered: bool
) -> None:
    import io
    import sys

    from nf4tui.commands.choose_model import choose_model
    from nf4tui.errors import InputError

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer.format(model=sample_model)))
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(sample_model.parents[1])
    if offered:
        assert Path(choose_model(None)).resolve() == sample_model
    else:
        with pytest.raises(InputError, match="no model chosen"):
            choose_model(None)
    assert "1  sample_data/model" in shown.getvalue()
