"""Run directories without a trainer, and the dashboard over them: under Pilot or on a pseudo-terminal."""

import asyncio
import dataclasses
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nf4tui.dashboard import main_screen
from nf4tui.dashboard.app import DashboardApp
from nf4tui.dashboard.reader import RunReader
from nf4tui.runs.control import take
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.event_log import EventLog
from nf4tui.runs.status import StatusFile

Scene = Callable[[DashboardApp, Any], Awaitable[None]]


def load(name: str) -> ModuleType:
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(f"dashboard_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def simulated() -> ModuleType:
    return load("simulated")


@pytest.fixture(scope="session")
def terminal() -> ModuleType:
    return load("terminal")


class Worker:
    """Stands for a trainer that is our child: `code` is what poll() tells."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Run:
    """A run directory that a test writes event by event, as the trainer of this very process."""

    def __init__(self, folder: Path, simulated: ModuleType, **settings: Any) -> None:
        config = dataclasses.replace(simulated.CONFIG, **settings)
        self.directory: RunDirectory = simulated.begin(folder, config)
        self.status = StatusFile(self.directory.status)
        self.worker = Worker()
        self._log = EventLog(self.directory.events)

    def add(self, events: Iterable[Any]) -> None:
        for event in events:
            self._log.append(event)

    def words(self) -> list[str]:
        return [*take(self.directory.control)]

    def show(
        self, scene: Scene, *, size: tuple[int, int] = (120, 30), watching: bool = False
    ) -> DashboardApp:
        """Plays the scene on a dashboard over this run; returns the app as it ended."""
        reader = RunReader(self.directory, None if watching else self.worker)  # type: ignore[arg-type]
        app = DashboardApp(reader)

        async def play() -> None:
            async with app.run_test(size=size) as pilot:
                await settle(app, pilot)
                await scene(app, pilot)

        asyncio.run(play())
        return app


async def settle(app: DashboardApp, pilot: Any) -> None:
    """Waits until the dashboard has read what is there now."""
    reads = app.main.readings
    while app.is_running and app.main.readings < reads + 2:
        await pilot.pause(0.02)
    await pilot.pause(0.02)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboards of these tests read their run more often than others."""
    monkeypatch.setattr(main_screen, "POLL_SECONDS", 0.1)


@pytest.fixture
def run(tmp_path: Path, simulated: ModuleType) -> Run:
    return Run(tmp_path / "run", simulated)


@pytest.fixture
def new_run(tmp_path: Path, simulated: ModuleType) -> Callable[..., Run]:
    """Makes a run in a folder of the given name with the given settings."""
    return lambda name, **settings: Run(tmp_path / name, simulated, **settings)


@pytest.fixture(scope="session")
def settled() -> Callable[[DashboardApp, Any], Awaitable[None]]:
    return settle


@pytest.fixture(scope="session")
def screen_text() -> Callable[[DashboardApp], str]:
    """The characters on the screen of a dashboard, one line a row."""

    def text(app: DashboardApp) -> str:
        return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    return text


@pytest.fixture
def dead_status(tmp_path: Path) -> Callable[[Path], None]:
    """Writes the status.json of a trainer that went without a word: no heartbeat, its process gone."""

    def write(path: Path) -> None:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        path.write_text(
            f'{{"pid": {ended.pid}, "host": "{platform.node()}", "started": "2026-01-01T00:00:00Z",'
            ' "state": "running", "heartbeat": "2026-01-01T00:00:00Z"}'
        )

    return write
