"""nf4tui train: the dashboard over a worker process on a terminal, plain lines in this process elsewhere."""

import glob
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from nf4tui.config import TrainConfig, terminal_is_dumb
from nf4tui.errors import InputError, Nf4tuiError


def run_flags(
    flags: Mapping[str, Any], *, toml: Path | None, resume: bool, no_tui: bool, as_json: bool
) -> int:
    """Trains with the settings of all sources: `flags` (by name, as given) over environment over `toml`.
    Raises Nf4tuiError, after the error event where `as_json`."""
    try:
        config, explicit = _settings(flags, toml, resume=resume)
    except Nf4tuiError as error:
        if as_json:
            from nf4tui.runs.events import ErrorEvent, to_json

            print(to_json(ErrorEvent(message=str(error))), flush=True)
        raise
    return run(config, resume=resume, no_tui=no_tui, as_json=as_json, explicit=explicit)


def _settings(
    flags: Mapping[str, Any], toml: Path | None, *, resume: bool
) -> tuple[TrainConfig, frozenset[str]]:
    """The settings, and the names of those that the user gave."""
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.config_sources import merged

    settings = merged(flags, toml)
    explicit = frozenset(settings)
    if not settings.get("data") and not (resume and "out" in settings):
        raise InputError("no data: name at least one JSONL file, as in `nf4tui train data.jsonl`")
    settings.setdefault("data", ())
    if "out" not in settings:
        settings["out"] = _run_directory(settings["data"], resume=resume)
    if resume and "model" not in settings and _has_run(settings["out"]):
        settings["model"] = ""  # taken from the run
    else:
        if settings.get("model") is None:
            _check_data(settings["data"])
        settings["model"] = choose_model(settings.get("model"), settings["data"])
    return TrainConfig(**settings), explicit


def _check_data(data: tuple[str, ...]) -> None:
    """Raises InputError for a file that is not there: to ask for a model first would lead astray."""
    from nf4tui.data.files import expand
    from nf4tui.user_path import user_path

    for file in expand(data) if data else ():
        if not os.path.exists(user_path(file)):  # noqa: PTH110 (NUL in a name: False, and opening says why)
            raise InputError(f"{file}: no such file; check the path")


def _has_run(out: str) -> bool:
    from nf4tui.runs.directory import run_at

    return run_at(out).config.exists()


def _run_directory(data: tuple[str, ...], *, resume: bool) -> str:
    """runs/DATA-TIME, or with `resume` the newest of this data."""
    stem = Path(data[0]).stem.strip("*?[]") or "data"
    if resume:
        runs = sorted(Path("runs").glob(f"{glob.escape(stem)}-????????-??????"))
        runs = [path for path in runs if path.is_dir()]
        if not runs:
            raise InputError(f"--resume: no run of {data[0]} in runs/; name its directory with --out")
        return str(runs[-1])
    return str(Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}")


def run(config: TrainConfig, *, resume: bool, no_tui: bool, as_json: bool, explicit: frozenset[str]) -> int:
    """Trains. `explicit`: the settings that the user named; with `resume` the others come from the run.

    Returns 0, or 130, 143 or 129 where a signal stopped the run after a checkpoint. Raises Nf4tuiError.
    """
    from nf4tui.dashboard.gate import can_show

    if no_tui or as_json or not can_show(sys.stdin, sys.stdout, sys.stderr):
        return _headless(config, resume=resume, as_json=as_json, explicit=explicit)
    from nf4tui.dashboard.app import run_dashboard
    from nf4tui.runs.directory import run_at
    from nf4tui.training.launch import start_worker

    worker = start_worker(config, resume=resume, explicit=explicit)
    return 0 if worker is None else run_dashboard(run_at(config.out).path, worker=worker)


def _headless(config: TrainConfig, *, resume: bool, as_json: bool, explicit: frozenset[str]) -> int:
    from nf4tui.headless import Headless
    from nf4tui.runs.events import ErrorEvent, Event
    from nf4tui.training.session import attempt, exit_code
    from nf4tui.training.signals import StopSignals, caught

    signals = StopSignals()
    bar = sys.stdout.isatty() and not terminal_is_dumb()
    shown: Headless | None = Headless(sys.stdout, as_json=as_json, bar=bar)
    last: Event | None = None
    with (
        caught(signals),
        closing(attempt(config, resume=resume, explicit=explicit, signals=signals)) as events,
    ):
        try:
            for last in events:
                try:
                    if shown is not None:
                        shown.show(last)
                except OSError as error:
                    shown = None
                    _output_closed(error)
                    signals.request(signal.SIGHUP)
        except Nf4tuiError as error:
            if as_json and shown is not None and not isinstance(last, ErrorEvent):
                shown.show(ErrorEvent(message=str(error)))
            raise
    return exit_code(last, signals)


def _output_closed(error: OSError) -> None:
    """Says so on standard error, and lets what Python still holds for standard output go nowhere."""
    sys.stderr.write(f"standard output: {error.strerror}; stopping after a checkpoint (--resume goes on)\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
