"""Which face nf4tui train shows: the dashboard over a worker on a terminal, plain lines elsewhere."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nf4tui.commands import train

Shown = list[tuple[Path, "subprocess.Popen[bytes]"]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A dashboard that waits for the worker and returns 7; the calls made to it."""
    calls: Shown = []

    def run_dashboard(run_dir: Path, *, worker: "subprocess.Popen[bytes]") -> int:
        calls.append((run_dir, worker))
        assert worker.wait(timeout=30) == 0
        return 7

    app = ModuleType("nf4tui.dashboard.app")
    app.run_dashboard = run_dashboard  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nf4tui.dashboard.app", app)
    return calls


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_terminal(
        *, stdin: bool = True, stdout: bool = True, stderr: bool = True, term: str = "xterm"
    ) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin, raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: stderr)
        monkeypatch.setenv("TERM", term)

    return set_terminal


def run(config: Any, *, no_tui: bool = False, as_json: bool = False) -> int:
    return train.run(config, resume=False, no_tui=no_tui, as_json=as_json, explicit=frozenset())


def test_on_a_terminal_the_dashboard_opens_over_a_worker_that_trains(
    tmp_path: Path, tiny: Any, shown: Shown, terminal: Callable[..., None]
) -> None:
    terminal()
    assert run(tiny.config(tmp_path / "run", steps=2)) == 7
    ((folder, _),) = shown
    assert folder == tmp_path / "run" and (folder / "adapter").is_dir()


@pytest.mark.parametrize(
    ("where", "flags"),
    [
        ({"stdin": False}, {}),
        ({"stdout": False}, {}),
        ({"stderr": False}, {}),
        ({"term": "dumb"}, {}),
        ({"term": ""}, {}),
        ({}, {"no_tui": True}),
        ({}, {"as_json": True}),
    ],
)
def test_elsewhere_the_run_is_plain_lines_in_this_process(
    tmp_path: Path,
    tiny: Any,
    shown: Shown,
    terminal: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    where: dict[str, Any],
    flags: dict[str, bool],
) -> None:
    terminal(**where)
    assert run(tiny.config(tmp_path / "run", steps=2), **flags) == 0
    assert not shown
    out = capsys.readouterr().out
    assert ('"event": "done"' if flags.get("as_json") else "done after step 2") in out
    erasable = where in ({}, {"stdin": False}, {"stderr": False}) and not flags.get("as_json")
    assert ("\x1b" in out) == erasable, "the bar belongs on a terminal that can erase a line"
