"""The dashboard as its user has it: keys pressed, and what the screen and the trainer make of them."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from nf4tui.dashboard.app import DashboardApp
from nf4tui.dashboard.chart_pane import ChartPane
from nf4tui.dashboard.help_screen import HelpScreen
from nf4tui.dashboard.keys import COMMANDS, KEYS, MAX_FOOTER, PANES
from nf4tui.dashboard.main_screen import MainScreen
from nf4tui.dashboard.quit_screen import QuitScreen
from nf4tui.runs.events import DoneEvent, ErrorEvent, StateEvent

Text = Callable[[DashboardApp], str]


def focused(app: DashboardApp) -> str | None:
    return None if app.focused is None else app.focused.id


def test_the_screen_shows_loss_rates_health_log_and_keys(
    run: Any, simulated: ModuleType, screen_text: Text
) -> None:
    run.add(simulated.events(60))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        shown = screen_text(app)
        for expected in (
            "● running",
            "step 60/60",
            "1 loss",
            "train 0.",
            "validation 0.",
            "2 learning rate",
            "3 grad norm",
            "supervised",
            "5 precision",
            "34 in 2 steps",
            "layers.3.attn.q_proj.grad_lora_A",
            "checkpoint of step 60",
            "sample_data/model",
            "rank 16, alpha 32",
            "pause/resume",
        ):
            assert expected in shown, expected
        assert "parity" not in shown
        assert "step 54 " not in shown, "steps that went well are not for the log"

    run.show(scene, size=(160, 45))


def test_p_pauses_and_then_resumes(run: Any, simulated: ModuleType, screen_text: Text, settled: Any) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("p")
        assert run.words() == ["pause"]
        assert "pausing after this step" in screen_text(app)
        run.add([StateEvent(state="paused")])
        run.status.set_state("paused")
        await settled(app, pilot)
        assert "‖ paused" in screen_text(app) and "pausing" not in screen_text(app)
        await pilot.press("p")
        assert run.words() == ["resume"]

    run.show(scene)


def test_c_asks_for_a_checkpoint(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("c")
        assert run.words() == ["checkpoint"]

    run.show(scene)


def test_s_asks_first_then_stops_and_stays(run: Any, simulated: ModuleType, settled: Any) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("s")
        assert isinstance(app.screen, QuitScreen) and run.words() == []
        await pilot.press("enter")
        assert run.words() == ["stop"]
        run.status.set_state("stopped")
        run.worker.code = 143
        await settled(app, pilot)
        assert app.is_running and app.main.condition.state == "stopped"

    run.show(scene)


def test_y_makes_the_axis_of_the_chart_in_focus_logarithmic_and_back(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        loss, rate = (app.main.query_one(name, ChartPane) for name in ("#loss", "#learning-rate"))
        await pilot.press("y")
        assert loss.log_axis and not rate.log_axis
        await pilot.press("y", "2", "y")
        assert rate.log_axis and not loss.log_axis
        await pilot.press("8", "y")
        assert loss.log_axis, "the loss is meant where no chart is in focus"

    run.show(scene)


def test_the_number_keys_focus_the_panes_at_every_size(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        for size in ((120, 30), (100, 30), (70, 24)):
            await pilot.resize_terminal(*size)
            for number in (8, 5, 7):
                await pilot.press(str(number))
                await pilot.pause()
                name = PANES[number - 1]
                assert focused(app) == name
                assert app.main.query_one(f"#{name}").region.overlaps(app.main.region)

    run.show(scene)


def test_tab_goes_round_the_panes_and_shift_tab_back(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        seen = []
        for _ in PANES:
            seen.append(focused(app))
            await pilot.press("tab")
            await pilot.pause()
        assert seen == [*PANES] and focused(app) == PANES[0]
        await pilot.press("shift+tab")
        await pilot.pause()
        assert focused(app) == PANES[-1]

    run.show(scene)


def test_precision_has_no_pane_before_it_is_measured(
    run: Any, simulated: ModuleType, screen_text: Text
) -> None:
    run.add([simulated.start(9), simulated.step(1, 2.0)])

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "precision" not in screen_text(app)
        await pilot.press("4", "5")
        await pilot.pause()
        assert focused(app) == "throughput"
        await pilot.press("tab")
        await pilot.pause()
        assert focused(app) == "now"

    run.show(scene)


def test_z_shows_one_pane_alone_and_all_of_them_again(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        chart, log = app.main.query_one("#grad-norm"), app.main.query_one("#log")
        before = chart.size
        await pilot.press("3", "z")
        await pilot.pause()
        assert chart.size.width > 110 and not log.display
        await pilot.press("z")
        await pilot.pause()
        assert chart.size == before and log.display

    run.show(scene)


def test_w_narrows_the_charts_to_the_last_steps(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(300))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        loss = app.main.query_one("#loss", ChartPane)
        await pilot.press("w", "w")
        assert loss.first_step == 201
        await pilot.press("w")
        assert loss.first_step == 0

    run.show(scene)


def test_question_mark_explains_every_key_of_the_table(
    run: Any, simulated: ModuleType, screen_text: Text
) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        shown = screen_text(app)
        for key in KEYS:
            assert key.explained in shown, key
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)

    run.show(scene)


def test_the_table_of_keys_is_complete_and_short() -> None:
    assert sum(bool(key.footer) for key in KEYS) <= MAX_FOOTER
    names = [name for key in KEYS for name in key.keys.split(",")]
    assert len(names) == len(set(names))
    for key in KEYS:
        assert hasattr(MainScreen, f"action_{key.action.split('(')[0]}"), key
    assert {key.action for key in KEYS} >= COMMANDS


def test_q_asks_while_the_trainer_lives_and_enter_detaches(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("q")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert not app.is_running

    run.show(scene)
    assert run.words() == []


def test_cancel_stays(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        for keys in (("q", "escape"), ("q", "q"), ("q", "down", "down", "enter")):
            await pilot.press(*keys)
            assert app.is_running and isinstance(app.screen, MainScreen)
        assert run.words() == []

    run.show(scene)


def test_a_second_ctrl_c_detaches(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("ctrl+c")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert not app.is_running

    run.show(scene)
    assert run.words() == []


def test_stop_and_save_leaves_once_the_trainer_has_ended(
    run: Any, simulated: ModuleType, settled: Any
) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("q", "down", "enter")
        assert run.words() == ["stop"]
        await settled(app, pilot)
        assert app.is_running, "it saves first"
        run.status.set_state("stopped")
        run.worker.code = 143
        await settled(app, pilot)
        assert not app.is_running

    run.show(scene)


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 4), ("stopped", 143)])
def test_q_leaves_at_once_when_the_trainer_has_ended(
    run: Any, simulated: ModuleType, state: str, code: int
) -> None:
    run.add(simulated.events(9))
    run.status.set_state(state)
    run.worker.code = code

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running

    run.show(scene)


def test_a_viewer_leaves_at_once_and_can_send_nothing(
    run: Any, simulated: ModuleType, screen_text: Text
) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "pause" not in screen_text(app)
        await pilot.press("p", "c", "s")
        assert isinstance(app.screen, MainScreen)
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running

    run.show(scene, watching=True)
    assert run.words() == []


def test_a_trainer_that_dies_is_shown_as_crashed(
    run: Any, simulated: ModuleType, screen_text: Text, settled: Any
) -> None:
    run.add(simulated.events(9))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "● running" in screen_text(app)
        run.worker.code = 137
        await settled(app, pilot)
        assert "✗ crashed" in screen_text(app)
        await pilot.press("p")
        assert run.words() == [], "there is nobody to hear it"

    run.show(scene)


def test_a_run_of_others_whose_process_is_gone_is_shown_as_crashed(
    run: Any, simulated: ModuleType, screen_text: Text, dead_status: Any
) -> None:
    run.add(simulated.events(9))
    dead_status(run.directory.status)

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "✗ crashed" in screen_text(app)

    run.show(scene, watching=True)


def test_the_error_of_a_failed_run_is_on_the_screen(
    run: Any, simulated: ModuleType, screen_text: Text
) -> None:
    run.add([simulated.start(9), ErrorEvent(message="step 3: not finite for 3 steps in a row")])
    run.status.set_state("failed")

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "✗ failed" in screen_text(app)
        assert "3 steps in a row" in screen_text(app)

    run.show(scene)


def test_a_finished_run_names_its_adapter(run: Any, simulated: ModuleType, screen_text: Text) -> None:
    run.add(
        [*simulated.events(9), DoneEvent(step=9, adapter="runs/x/adapter", best_step=6, reloaded_loss=0.5)]
    )
    run.status.set_state("finished")

    async def scene(app: DashboardApp, pilot: Any) -> None:
        assert "✓ done" in screen_text(app) and "runs/x/adapter" in screen_text(app)

    run.show(scene, watching=True)


def test_losses_beyond_all_bounds_freeze_nothing(run: Any, simulated: ModuleType, screen_text: Text) -> None:
    losses = [2.0, math.nan, math.inf, -math.inf, 1e30, 1.7e308, 5e-324, 0.0, -1.0]
    run.add(
        [simulated.start(9), *(simulated.step(number, loss) for number, loss in enumerate(losses, start=1))]
    )

    async def scene(app: DashboardApp, pilot: Any) -> None:
        await pilot.press("y", "z", "z", "y")
        assert "step 9/9" in screen_text(app)

    run.show(scene)


def test_any_size_of_terminal_is_survived(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        for size in ((1, 1), (120, 4), (20, 5), (3, 60)):
            await pilot.resize_terminal(*size)
            await pilot.press("8", "q", "escape")
            await pilot.pause()
            assert app.is_running

    run.show(scene)


def test_the_layout_is_three_two_or_one_columns_by_width(run: Any, simulated: ModuleType) -> None:
    run.add(simulated.events(30))

    async def scene(app: DashboardApp, pilot: Any) -> None:
        def left_edges() -> int:
            shown = [pane for pane in app.main.query(".pane") if pane.display and pane.size.width]
            return len({pane.region.x for pane in shown})

        for width, columns in ((120, 3), (119, 2), (80, 2), (79, 1)):
            await pilot.resize_terminal(width, 24)
            await pilot.pause(0.1)
            assert left_edges() == columns, width

    run.show(scene)


def test_events_written_while_watching_appear(
    run: Any, simulated: ModuleType, screen_text: Text, settled: Any
) -> None:
    events = [*simulated.events(60)]
    run.add(events[:10])

    async def scene(app: DashboardApp, pilot: Any) -> None:
        run.add(events[10:])
        await settled(app, pilot)
        assert "step 60/60" in screen_text(app)

    run.show(scene)
