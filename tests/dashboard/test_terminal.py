"""The dashboard on a real terminal: what is written to it, and in which state it is left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nf4tui.dashboard.gate import can_show
from nf4tui.runs.events import (
    CheckpointEvent,
    ErrorEvent,
    EvalEvent,
    LogEvent,
    PrecisionEvent,
    StateEvent,
    TapError,
)

EVIL = "\x1b]52;c;aGFja2Vk\x07\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eevil\u200b[bold]x[/][/[@click=app.quit]y\ud800"
# Nothing of this may reach a terminal: the clipboard, the title, C1, bidi, zero-width, DEL, BEL.
FORBIDDEN = (b"\x1b]", b"\x07", b"\x1b[2J", b"\xc2\x9b", "\u202e".encode(), "\u200b".encode(), b"\x7f")
LEAVES = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l")  # main screen, cursor, no mouse


def hostile_events(simulated: ModuleType) -> list[Any]:
    return [
        simulated.start(9, model=EVIL, device=EVIL, data={EVIL: 3}, versions={EVIL: EVIL}),
        LogEvent(level="warning", message=EVIL),
        LogEvent(level=EVIL, message=EVIL, time=EVIL),
        EvalEvent(step=0, loss=2.0, tokens=1, samples=1),
        simulated.step(1, 2.0, nonfinite=2, nonfinite_tensor=EVIL),
        PrecisionEvent(step=1, rel_l2=1e-7, worst=TapError(tap=EVIL, rel_l2=1e-6)),
        CheckpointEvent(step=1, path=EVIL),
        StateEvent(state=EVIL),
        ErrorEvent(message=EVIL),
    ]


@pytest.fixture
def hostile_run(new_run: Any, simulated: ModuleType) -> Any:
    """A failed run whose every text, its folder's name included, attacks the terminal."""
    text = EVIL.removesuffix("\ud800")
    run = new_run(text.replace("/", ""), model=text, data=(text,), schedule=text)
    run.add(hostile_events(simulated))
    run.status.set_state("failed")
    return run


def assert_harmless(output: bytes) -> None:
    for forbidden in FORBIDDEN:
        assert forbidden not in output, (forbidden, output[max(0, output.find(forbidden) - 80) :][:200])


@pytest.mark.parametrize("size", [(160, 45), (70, 24)])
def test_nothing_from_data_reaches_the_terminal_raw(
    hostile_run: Any, terminal: ModuleType, size: tuple[int, int]
) -> None:
    with terminal.Terminal(terminal.watch(hostile_run.directory.path), size) as shown:
        shown.wait_for("failed")
        for key in "12345678?":
            shown.press(key)
            time.sleep(0.08)
        shown.press("\x1b")
        time.sleep(0.5)  # a lone escape is told from a sequence by time
        shown.press("q")
        assert shown.finish() == 4
        # The shape of the mouse pointer is a sequence of Textual's own, without anything from data.
        assert_harmless(re.sub(rb"\x1b\]22;[a-z-]*\x07", b"", shown.output))
        text = re.sub(r"\x1b\[[0-9;?<>$]*[a-zA-Z]", "", shown.output.decode())
        assert "\\x1b]52;c;aGFja2Vk\\x07" in text and "[bold]" in text and "[@click=app.quit]" in text


def test_the_question_on_the_way_out_shows_the_path_harmlessly(hostile_run: Any, screen_text: Any) -> None:
    hostile_run.status.set_state("running")

    async def scene(app: Any, pilot: Any) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert_harmless(screen_text(app).encode())
        assert "comes back" in screen_text(app)

    hostile_run.show(scene)


def test_without_a_terminal_nothing_from_data_is_printed_raw_either(
    hostile_run: Any, terminal: ModuleType
) -> None:
    line = terminal.watch(hostile_run.directory.path)
    done = subprocess.run(line, capture_output=True, timeout=30, check=False)
    assert done.returncode == 4
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_restores_the_terminal(
    run: Any, simulated: ModuleType, terminal: ModuleType, number: signal.Signals, code: int
) -> None:
    run.add(simulated.events(20))
    with terminal.Terminal(terminal.watch(run.directory.path)) as shown:
        before = terminal.modes(shown.master)
        shown.wait_for("grad norm")
        os.kill(shown.process.pid, number)
        assert shown.finish() == code
        assert all(leave in shown.output for leave in LEAVES)
        assert terminal.modes(shown.master) == before
        assert b"Traceback" not in shown.output


def test_events_that_cannot_be_read_are_one_line_and_no_traceback(run: Any, terminal: ModuleType) -> None:
    run.directory.events.unlink()
    run.directory.events.mkdir()
    with terminal.Terminal(terminal.watch(run.directory.path)) as shown:
        assert shown.finish() == 2
        last = shown.output.decode().splitlines()[-1]
        assert last.endswith("events.jsonl: cannot be read (Is a directory)")
        assert all(leave in shown.output for leave in LEAVES) and b"Traceback" not in shown.output


@pytest.mark.parametrize("controlling", [True, False])
def test_a_terminal_that_goes_away_ends_the_dashboard(
    run: Any, simulated: ModuleType, terminal: ModuleType, controlling: bool
) -> None:
    run.add(simulated.events(20))
    with terminal.Terminal(terminal.watch(run.directory.path), controlling=controlling) as shown:
        shown.wait_for("grad norm")
        shown.hang_up()
        assert shown.process.wait(timeout=10) == 129


@pytest.mark.parametrize("controlling", [True, False])
def test_a_terminal_that_stalls_and_then_goes_away_ends_the_dashboard(
    run: Any, simulated: ModuleType, terminal: ModuleType, controlling: bool
) -> None:
    run.add(simulated.events(20))
    with terminal.Terminal(terminal.watch(run.directory.path), (200, 60), controlling=controlling) as shown:
        shown.wait_for("grad norm")
        for key in "12345678" * 6:  # more output than the terminal and the queue before it hold
            shown.press(key)
            time.sleep(0.02)
        shown.hang_up()
        assert shown.process.wait(timeout=10) == 129


def test_no_color_means_none(run: Any, simulated: ModuleType, terminal: ModuleType) -> None:
    run.add(simulated.events(20))
    with terminal.Terminal(terminal.watch(run.directory.path), NO_COLOR="1") as shown:
        shown.wait_for("grad norm")
        shown.press("q")
        shown.finish()
        styles = re.findall(rb"\x1b\[([0-9;]*)m", shown.output)
        assert styles and not [
            style for style in styles if re.search(rb"(^|;)(38|48|3[0-7]|4[0-7])(;|$)", style)
        ]


def test_two_viewers_may_watch_one_run(run: Any, simulated: ModuleType, terminal: ModuleType) -> None:
    run.add(simulated.events(20))
    line = terminal.watch(run.directory.path)
    with terminal.Terminal(line) as one, terminal.Terminal(line) as two:
        for shown in (one, two):
            shown.wait_for("grad norm")
            shown.press("q")
            assert shown.finish() == 0
            assert b"training goes on; nf4tui watch" in shown.output
    assert run.words() == []


_TRAIN = """
import subprocess, sys
from pathlib import Path
from nf4tui.dashboard.app import run_dashboard
simulated, folder, *options = sys.argv[1:]
worker = subprocess.Popen([sys.executable, simulated, folder, *options], start_new_session=True)
print("WORKER", worker.pid, flush=True)
while not Path(folder, "events.jsonl").exists(): pass
sys.exit(run_dashboard(Path(folder), worker=worker))
"""


def started(folder: Path, *options: str) -> list[str]:
    """The command line of a dashboard over a stand-in trainer, as nf4tui train has it over its own."""
    return [sys.executable, "-c", _TRAIN, str(Path(__file__).parent / "simulated.py"), str(folder), *options]


def test_a_trainer_goes_on_when_the_terminal_of_its_dashboard_goes_away(
    tmp_path: Path, terminal: ModuleType
) -> None:
    from nf4tui.runs.status import read_status

    line = started(tmp_path / "run", "--steps", "60", "--seconds-a-step", "0.05")
    with terminal.Terminal(line) as shown:
        shown.wait_for("grad norm")
        shown.hang_up()
        assert shown.process.wait(timeout=10) == 129
    end = time.monotonic() + 20
    while (status := read_status(tmp_path / "run/status.json")) is None or not status.ended:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert status.state == "finished"


def test_stop_and_save_ends_with_the_trainers_exit_code(tmp_path: Path, terminal: ModuleType) -> None:
    with terminal.Terminal(started(tmp_path / "run", "--steps", "2000")) as shown:
        shown.wait_for("grad norm")
        shown.press("q")
        shown.wait_for("Stop and save")
        shown.press("s")
        assert shown.finish() == 143
        assert b"stopped after step" in shown.output and b"--resume" in shown.output


@pytest.mark.parametrize(
    ("how", "code", "word"), [("--fail", 4, b"failed: step"), ("--crash", 137, b"crashed")]
)
def test_a_run_that_fails_or_crashes_gives_its_exit_code(
    tmp_path: Path, terminal: ModuleType, how: str, code: int, word: bytes
) -> None:
    line = started(tmp_path / "run", "--steps", "20", "--seconds-a-step", "0.02", how)
    with terminal.Terminal(line) as shown:
        shown.wait_for("failed" if how == "--fail" else "crashed")
        shown.press("q")
        assert shown.finish() == code
        assert word in shown.output


class Stream:
    def __init__(self, terminal: bool, closed: bool = False) -> None:
        self._terminal = terminal
        self.closed = closed

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("streams", "term", "shown"),
    [
        ((True, True, True), "xterm", True),
        ((False, True, True), "xterm", False),
        ((True, False, True), "xterm", False),
        ((True, True, False), "xterm", False),
        ((True, True, True), "dumb", False),
        ((True, True, True), "", False),
    ],
)
def test_a_dashboard_needs_a_terminal_on_every_side(
    monkeypatch: pytest.MonkeyPatch, streams: tuple[bool, ...], term: str, shown: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    assert can_show(*map(Stream, streams)) is shown  # type: ignore[arg-type]


def test_closed_streams_are_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal: Any = Stream(True)
    assert not can_show(None, terminal, terminal)
    assert not can_show(terminal, Stream(True, closed=True), terminal)  # type: ignore[arg-type]
