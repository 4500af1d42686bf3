"""nf4tui as a process, in a folder of its own, with an empty home."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def sample_model() -> Path:
    return ROOT / "sample_data" / "model"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The tests' environment without the user's own settings, hub cache and hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NF4TUI_", "NUMBA_", "XDG_", "HF_"))
    }
    home = tmp_path / "home"
    home.mkdir()
    return {**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "TERM": "dumb"}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Runs `python -m nf4tui` with the arguments given, in tmp_path."""

    def call(*arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "nf4tui", *map(str, arguments)],
            cwd=tmp_path,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture(scope="session")
def terminal() -> type[Any]:
    """The pseudo-terminal of the dashboard's tests."""
    path = Path(__file__).parents[1] / "dashboard/terminal.py"
    spec = importlib.util.spec_from_file_location("commands_terminal", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[Any] = module.Terminal
    return found


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight small conversations."""
    path = tmp_path / "data.jsonl"
    records = [chat(f"Is {number} even?", "no" if number % 2 else "yes") for number in range(8)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
