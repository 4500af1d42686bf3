"""The dashboard's one screen: panes fed by one reading of the run directory after the other.

>= 120 columns    loss, log | small charts | now, run
 80..119          loss, log | small charts, now, run (scrolls)
 < 80, or zoomed  one pane at a time, under a bar of tabs
"""

import asyncio
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from nf4tui.dashboard.chart_pane import ChartPane
from nf4tui.dashboard.condition import Condition
from nf4tui.dashboard.curves import LOSS, SMALL_CHARTS
from nf4tui.dashboard.facts import now_rows, run_rows
from nf4tui.dashboard.facts_pane import FactsPane
from nf4tui.dashboard.header import Header
from nf4tui.dashboard.help_screen import HelpScreen
from nf4tui.dashboard.history import History
from nf4tui.dashboard.keys import COMMANDS, KEYS, PANE_TITLES, PANES
from nf4tui.dashboard.log_pane import LogPane
from nf4tui.dashboard.quit_screen import CANCEL, DETACH, STOP, QuitScreen
from nf4tui.dashboard.reader import Reading, RunReader
from nf4tui.dashboard.tab_bar import TabBar
from nf4tui.errors import InputError
from nf4tui.runs.control import Word
from nf4tui.runs.events import CheckpointEvent, StateEvent
from nf4tui.sanitize import one_line

POLL_SECONDS = 0.25
AT_ONCE = 5000  # events taken in before keys are heard again: some 50 ms
WINDOWS = (None, 1000, 100)  # steps that the charts show, counted from the last; None: all


class MainScreen(Screen[None], inherit_bindings=False):
    """Reads the run four times a second and hands what is new to the panes."""

    BINDINGS: ClassVar = [key.binding() for key in KEYS]
    AUTO_FOCUS = "#loss"

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self._reader = reader
        self._history = History()
        self.condition = Condition("starting")
        self.readings = 0  # how often the run was read
        self._leaving = False  # stop was chosen on the way out: leave when the trainer has ended
        self._window = 0
        self._current = 1
        self._settings: dict[str, str] = {}
        # Held here, and not looked up: a reading may come in while the screen is being taken down.
        self._header = Header(reader.run.path.name, self._history)
        self._tabs = TabBar(PANE_TITLES)
        self._charts = {
            plan.name: ChartPane(plan, _number(plan.name), self._history) for plan in (LOSS, *SMALL_CHARTS)
        }
        self._log = LogPane(_number("log"))
        self._facts = {name: FactsPane(name, _number(name)) for name in ("now", "run")}
        self._panes: dict[str, Widget] = {**self._charts, **self._facts, "log": self._log}

    @property
    def history(self) -> History:
        """What is known of the run so far."""
        return self._history

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._tabs
        panes = self._panes
        with Container(id="body"):
            with Vertical(id="left", classes="column"):
                yield panes["loss"]
                yield panes["log"]
            with Container(id="side", classes="column"):
                with Vertical(id="charts", classes="column"):
                    for plan in SMALL_CHARTS:
                        yield panes[plan.name]
                with Vertical(id="facts", classes="column"):
                    yield panes["now"]
                    yield panes["run"]
        yield Footer(show_command_palette=False, compact=True)

    async def on_mount(self) -> None:
        self._settings = self._reader.settings()
        self._mark_current(1)
        self.run_worker(self._follow(), name="follow")

    async def _follow(self) -> None:
        while True:
            reading = await asyncio.to_thread(self._reader.read)
            for start in range(0, max(1, len(reading.events)), AT_ONCE):
                self._take(replace(reading, events=reading.events[start : start + AT_ONCE]))
                await asyncio.sleep(0)
            await asyncio.sleep(POLL_SECONDS)

    def _take(self, reading: Reading) -> None:
        """Shows a reading."""
        self.readings += 1
        for event in reading.events:
            self._history.add(event)
            self._log.add(event, self._history.total_steps)
            if isinstance(event, StateEvent | CheckpointEvent):
                self._header.asked = None
        changed = bool(reading.events) or reading.condition.state != self.condition.state
        self.condition = reading.condition
        self._header.show(reading.condition)
        if changed:
            self._update_panes(reading)
            self.refresh_bindings()
        if self._leaving and not self.condition.alive:
            self.app.exit()

    def _update_panes(self, reading: Reading) -> None:
        steps = WINDOWS[self._window]
        first = 0.0 if steps is None else self._history.steps_taken - steps + 1
        for chart in self._charts.values():
            chart.first_step = first
            chart.update()
        self._facts["now"].show(now_rows(self._history))
        self._facts["run"].show(run_rows(self._history, self._settings, reading.status))
        self._mark_current(self._current)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Words to the trainer are offered only to who started it, and only while it lives."""
        if action not in COMMANDS:
            return True
        if not self._reader.commands:
            return False
        return True if self.condition.alive else None

    def action_pause(self) -> None:
        self._send("resume" if self.condition.state == "paused" else "pause")

    def action_checkpoint(self) -> None:
        self._send("checkpoint")

    def action_stop(self) -> None:
        self._ask(STOP)

    def action_leave(self) -> None:
        if self._reader.commands and self.condition.alive:
            self._ask(DETACH)
        else:
            self.app.exit()

    def action_log_axis(self) -> None:
        chart = self.focused if isinstance(self.focused, ChartPane) else self._charts["loss"]
        chart.log_axis = not chart.log_axis

    def action_window(self) -> None:
        self._window = (self._window + 1) % len(WINDOWS)
        steps = WINDOWS[self._window]
        for chart in self._charts.values():
            chart.first_step = 0.0 if steps is None else self._history.steps_taken - steps + 1
        self.notify("all steps" if steps is None else f"the last {steps:,} steps", timeout=2)

    def action_zoom(self) -> None:
        self.toggle_class("-zoomed")

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(commands=self._reader.commands))

    def action_next_pane(self, direction: int) -> None:
        shown = [number for number in range(1, len(PANES) + 1) if number not in self._hidden()]
        at = shown.index(self._current) if self._current in shown else 0
        self.action_pane(shown[(at + direction) % len(shown)])

    def action_pane(self, number: int) -> None:
        if number in self._hidden():
            return
        self._mark_current(number)
        # It can take the focus once the style that shows it is in force.
        self.call_after_refresh(self._pane(number).focus)

    def on_tab_bar_chosen(self, event: TabBar.Chosen) -> None:
        self.action_pane(event.number)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if event.widget.id in PANES:
            self._mark_current(_number(event.widget.id))

    def _mark_current(self, number: int) -> None:
        """The current pane, and the columns around it, are all that a narrow screen shows."""
        self._current = number
        pane = self._pane(number)
        around = {pane, *pane.ancestors}
        for widget in self.query(".pane, .column"):
            widget.set_class(widget in around, "-current")
        self._tabs.show(number, self._hidden())

    def _hidden(self) -> frozenset[int]:
        """Numbers of the charts that have nothing to show yet."""
        empty = (chart.plan.name for chart in self._charts.values() if chart.empty)
        return frozenset(map(_number, empty))

    def _pane(self, number: int) -> Widget:
        return self._panes[PANES[number - 1]]

    # Words to the trainer

    def _send(self, word: Word) -> None:
        try:
            self._reader.send(word)
        except InputError as error:
            self.notify(one_line(str(error)), severity="error", markup=False)
        else:
            self._header.asked = word
            self._header.show(self.condition)

    def _ask(self, default: str) -> None:
        leaving = default == DETACH

        def answered(choice: str | None) -> None:
            if choice in (None, CANCEL):
                return
            if choice == STOP:
                self._leaving = leaving
                self._send("stop")
            else:
                self.app.exit()

        self.app.push_screen(QuitScreen(str(self._reader.run.path), default=default), answered)


def _number(name: str) -> int:
    """The key of a pane."""
    return PANES.index(name) + 1
