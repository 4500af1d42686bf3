"""The log pane: lines wrapped to any width, and an end that is followed unless somebody reads above it."""

from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nf4tui.dashboard.log_pane import LogPane
from nf4tui.dashboard.text import clock, compact, duration, fitted, scientific, wrapped
from nf4tui.runs.events import LogEvent


@given(st.text(max_size=200), st.integers(2, 40))
def test_wrapped_lines_fit_and_lose_no_word(text: str, width: int) -> None:
    from nf4tui.sanitize import one_line

    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == one_line(text).replace(" ", "")


@given(st.text(max_size=100), st.integers(0, 40))
def test_fitted_text_is_one_line_of_the_end(text: str, width: int) -> None:
    from nf4tui.sanitize import one_line

    shown = fitted(text, width)
    assert cell_len(shown) <= width
    assert one_line(text).endswith(shown.removeprefix("…"))


def test_numbers_and_times_are_short() -> None:
    assert [compact(value) for value in (0.4001, 5.157, 643.0, 81275.0, 2.5e7)] == [
        "0.4001",
        "5.157",
        "643",
        "81.3k",
        "25.0M",
    ]
    assert [scientific(value) for value in (2e-4, 0.0, float("nan"))] == ["2.0e-4", "0", "non-finite"]
    assert [duration(seconds) for seconds in (5, 65, 3661, 90061)] == [
        "0:05",
        "1:05",
        "1:01:01",
        "1 d 1:01:01",
    ]
    assert clock("no time\x1b") == "no time\\"[:8]


def log_events(first: int, count: int) -> list[LogEvent]:
    return [LogEvent(level="info", message=f"message {number}") for number in range(first, first + count)]


def test_the_end_is_followed_until_somebody_scrolls_away(
    run: Any, simulated: ModuleType, screen_text: Any, settled: Any
) -> None:
    run.add([simulated.start(9), *log_events(0, 60)])

    async def scene(app: Any, pilot: Any) -> None:
        await pilot.pause(0.1)
        assert "message 59" in screen_text(app)
        run.add(log_events(60, 5))
        await settled(app, pilot)
        await pilot.pause(0.1)
        assert "message 64" in screen_text(app)
        await pilot.press("8")
        app.main.query_one(LogPane).scroll_home(animate=False)
        await pilot.pause(0.1)
        run.add(log_events(65, 5))
        await settled(app, pilot)
        await pilot.pause(0.1)
        assert "message 69" not in screen_text(app) and "training: " in screen_text(app)
        app.main.query_one(LogPane).scroll_end(animate=False)
        await pilot.pause(0.1)
        assert "message 69" in screen_text(app)
        await pilot.resize_terminal(60, 30)
        await pilot.pause(0.2)
        assert "message 69" in screen_text(app)

    run.show(scene)


def test_only_the_newest_entries_are_kept(run: Any, simulated: ModuleType, monkeypatch: Any) -> None:
    from nf4tui.dashboard import log_pane

    monkeypatch.setattr(log_pane, "MAX_ENTRIES", 10)
    run.add([simulated.start(9), *log_events(0, 60)])

    async def scene(app: Any, pilot: Any) -> None:
        assert app.main.query_one(LogPane).virtual_size.height == 10

    run.show(scene)
