"""nf4tui watch off a terminal: the run's lines, followed to the end; and what it refuses."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nf4tui.commands import watch
from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.runs.events import DoneEvent, ErrorEvent


def test_a_finished_run_is_printed_whole(
    run: Any, simulated: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run.add([*simulated.events(30), DoneEvent(step=30, adapter="a", best_step=25, reloaded_loss=0.4)])
    run.status.set_state("finished")
    assert watch.run(str(run.directory.path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("training: sample_data/model")
    assert sum(line.startswith("step ") for line in lines) == 30
    assert lines[-1].startswith("done after step 30")


def test_a_live_run_is_followed_until_it_is_done(
    run: Any, simulated: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*simulated.events(30)]
    run.add(events[:5])

    def trainer() -> None:
        time.sleep(0.4)
        run.add([*events[5:], DoneEvent(step=30, adapter="a", best_step=None, reloaded_loss=0.4)])
        run.status.set_state("finished")

    thread = threading.Thread(target=trainer)
    thread.start()
    assert watch.run(str(run.directory.path)) == 0
    thread.join()
    assert capsys.readouterr().out.splitlines()[-1].startswith("done after step 30")


def test_a_failed_run_raises_what_it_failed_with(run: Any, simulated: ModuleType) -> None:
    run.add([simulated.start(9), ErrorEvent(message="step 3: not finite")])
    run.status.set_state("failed")
    with pytest.raises(TrainingFailedError, match="step 3: not finite"):
        watch.run(str(run.directory.path))


def test_a_crashed_run_says_how_to_go_on(run: Any, simulated: ModuleType, dead_status: Any) -> None:
    run.add(simulated.events(9))
    dead_status(run.directory.status)
    with pytest.raises(TrainingFailedError, match=r"gone without a word.*--resume"):
        watch.run(str(run.directory.path))


def test_a_run_that_never_started_is_not_waited_for_for_ever(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.directory.status.unlink()
    monkeypatch.setattr(watch, "START_SECONDS", 0.3)
    with pytest.raises(InputError, match="nothing trains here"):
        watch.run(str(run.directory.path))


@pytest.mark.parametrize("name", ["missing", "", "foreign", "file", "~nobody-of-that-name/x", "a\0b"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    path = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(InputError) as refused:
        watch.run(path)
    assert "\n" not in str(refused.value) and "Traceback" not in str(refused.value)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "foreign", "notes.txt"]


def test_events_that_cannot_be_read_are_refused(run: Any) -> None:
    run.directory.events.unlink()
    run.directory.events.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        watch.run(str(run.directory.path))


@pytest.mark.parametrize(
    "module", ["nf4tui.dashboard.app", "nf4tui.commands.watch", "nf4tui.dashboard.reader"]
)
def test_the_dashboard_never_imports_an_engine(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"numba", "tokenizers", "safetensors", "jinja2", "huggingface_hub", "cyclopts"}
    ours = {"engines", "reference", "cuda_kernels", "training", "models", "data", "parity", "inference"}
    assert not loaded & (heavy | {f"nf4tui.{name}" for name in ours})


def test_watching_without_a_terminal_does_not_import_textual(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(3))
    run.status.set_state("finished")
    code = (
        "import sys; from nf4tui.commands.watch import run; run(sys.argv[1]); print('textual' in sys.modules)"
    )
    line = [sys.executable, "-c", code, str(run.directory.path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


_IMPORT = """
import time, numpy, textual.app, textual.screen, textual.containers, textual.scroll_view, textual.widgets
from textual.widgets import Footer, OptionList, Static
began = time.process_time()
import nf4tui.dashboard.app
print(time.process_time() - began)
"""


def test_over_numpy_and_textual_the_dashboard_imports_nothing_slow() -> None:
    # Ten times what it takes on an idle machine: this is to find a heavy import, not to measure.
    def seconds() -> float:
        return float(subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True).stdout)

    assert min(seconds() for _ in range(4)) <= 1.0
