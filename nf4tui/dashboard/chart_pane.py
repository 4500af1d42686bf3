"""A chart of the run in a pane that can be focused: chart.py draws it, this colours it."""

from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from nf4tui.dashboard.chart import POINT, Chart, Curve, Ink, draw, row_text
from nf4tui.dashboard.curves import ChartPlan
from nf4tui.dashboard.history import History
from nf4tui.dashboard.palette import CURVES, MUTED

LINE = "━"  # a curve's marker in the legend
_INK_CLASSES: dict[int, str] = {
    Ink.GRID: "chart--grid",
    Ink.AXIS: "chart--axis",
    Ink.GAP: "chart--gap",
    Ink.RESUMED: "chart--resumed",
    Ink.CURVE: "chart--curve-1",
    Ink.CURVE + 1: "chart--curve-2",
}


class ChartPane(Widget, can_focus=True):
    """One chart. log_axis: a logarithmic value axis. first_step: earlier steps are not shown."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*_INK_CLASSES.values()}

    log_axis: reactive[bool] = reactive(False)
    first_step: reactive[float] = reactive(0.0)

    def __init__(self, plan: ChartPlan, number: int, history: History) -> None:
        """number: the key that focuses it."""
        super().__init__(id=plan.name, classes="pane chart")
        self.plan = plan
        self._number = number
        self._history = history
        self._drawn: tuple[object, Chart] | None = None
        self.set_reactive(ChartPane.log_axis, plan.log)

    def on_mount(self) -> None:
        self.update()

    def on_resize(self) -> None:
        self.border_title = self._title()

    def update(self) -> None:
        """Shows what the history holds now."""
        self.set_class(self.empty, "-empty")
        self.border_subtitle = "log" if self.log_axis else ""
        self.border_title = self._title()
        self.refresh()

    @property
    def empty(self) -> bool:
        """Whether this chart is of those that are shown only once they have something to show."""
        return self.plan.optional and not any(len(curve.series(self._history)) for curve in self.plan.curves)

    def watch_log_axis(self) -> None:
        self.border_subtitle = "log" if self.log_axis else ""

    def render_line(self, y: int) -> Strip:
        chart = self._chart()
        base = self.rich_style
        if y >= len(chart.characters) or not self.size.width:
            return Strip.blank(self.size.width, base)
        text, inks = row_text(chart.characters[y]), chart.inks[y]
        starts = [0, *(np.flatnonzero(np.diff(inks)) + 1).tolist(), len(inks)]
        styles = [self._style(int(inks[start]), base) for start in starts[:-1]]
        return Strip(
            [
                Segment(text[start:end], style)
                for start, end, style in zip(starts, starts[1:], styles, strict=False)
                if end > start
            ],
            len(text),
        )

    def _chart(self) -> Chart:
        """The chart for the present history and size, drawn once for all its rows."""
        size = (self.size.width, self.size.height)
        key = (self._history.version, size, self.log_axis, self.first_step)
        if self._drawn is None or self._drawn[0] != key:
            curves = [
                Curve(*plan.series(self._history).recent(self.first_step), points=plan.points)
                for plan in self.plan.curves
            ]
            history = self._history
            gaps = np.array(history.nonfinite_steps, np.float64) if self.plan.gaps else None
            chart = draw(curves, size, log=self.log_axis, gaps=gaps, resumes=history.resumes)
            self._drawn = (key, chart)
        return self._drawn[1]

    def _style(self, ink: int, base: Style) -> Style:
        name = _INK_CLASSES.get(ink)
        return base if name is None else self.get_component_rich_style(name)

    def _title(self) -> Content:
        """Number, name, and the newest value of each curve; without the curves' names where those are too
        long."""
        full = self._legend(named=True)
        return full if full.cell_length <= self.size.width - 2 else self._legend(named=False)

    def _legend(self, *, named: bool) -> Content:
        parts: list[str | tuple[str, str]] = [(f"{self._number} ", MUTED), (self.plan.title, "bold")]
        for plan, colour in zip(self.plan.curves, CURVES, strict=False):
            last = plan.series(self._history).last
            if last is None:
                continue
            marker = f"{POINT if plan.points else LINE} " if plan.label else ""
            label = f"{plan.label} " if named and plan.label else ""
            parts.append((f"  {marker}{label}{plan.form(last)}", colour))
        return Content.assemble(*parts)
