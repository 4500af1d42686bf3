"""A stand-in for a trainer: writes a run directory as a real one does, at any pace, and hears words.

    python simulated.py RUN_DIR [--steps N] [--seconds-a-step X] [--fail | --crash]
It computes nothing: losses fall along a curve with noise, and a few steps are not finite.
"""

import argparse
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from nf4tui.config import TrainConfig
from nf4tui.runs import control
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.event_log import EventLog
from nf4tui.runs.events import (
    CheckpointEvent,
    DoneEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    LogEvent,
    PrecisionEvent,
    StartEvent,
    StateEvent,
    StepEvent,
    TapError,
)
from nf4tui.runs.settings import to_toml
from nf4tui.runs.status import StatusFile

CONFIG = TrainConfig(
    data=("sample_data/train.jsonl",),
    model="sample_data/model",
    out="runs/sample",
    batch_size=8,
    max_seq_len=512,
)


def start(total_steps: int, **changes: object) -> StartEvent:
    values = {
        "attempt": 1,
        "resumed_from": None,
        "versions": {"nf4tui": "0.1.0", "numpy": "2.4.0"},
        "model": CONFIG.model,
        "device": "cpu",
        "total_steps": total_steps,
        "pid": os.getpid(),
        "data": {"samples": 400, "tokens": 61234, "supervised_tokens": 20411, "dropped_overlong": 3},
        **changes,
    }
    return StartEvent(**values)  # type: ignore[arg-type]


def step(number: int, loss: float, *, total: int = 300, nonfinite: int = 0, **changes: object) -> StepEvent:
    warmup = min(1.0, number / max(1, 0.05 * total))
    values = {
        "step": number,
        "loss": loss,
        "lr": 2e-4 * warmup * 0.5 * (1 + math.cos(math.pi * number / total)),
        "grad_norm": 0.4 + 2.0 * math.exp(-number / 30) if not nonfinite else math.nan,
        "tokens": 3500,
        "supervised_tokens": 1200,
        "padded_tokens": 4096,
        "nonfinite": nonfinite,
        "nonfinite_tensor": "layers.3.attn.q_proj.grad_lora_A" if nonfinite else None,
        "applied": nonfinite == 0,
        "epoch": number / 100,
        "step_ms": 45.0,
        **changes,
    }
    return StepEvent(**values)  # type: ignore[arg-type]


def events(total: int, seed: int = 0) -> Iterator[Event]:
    """Every event of a run but the last."""
    noise = random.Random(seed)
    yield start(total)
    yield LogEvent(level="info", message="learning rate 2.0e-4, by rank 16")
    yield EvalEvent(step=0, loss=2.41, tokens=2044, samples=40)
    best = math.inf
    for number in range(1, total + 1):
        loss = 0.25 + 2.1 * math.exp(-number / (total / 5)) * noise.uniform(0.9, 1.1) + noise.uniform(0, 0.08)
        broken = 0.4 * total < number <= 0.4 * total + 2
        slow = noise.uniform(40, 52)
        yield step(
            number,
            math.nan if broken else loss,
            total=total,
            nonfinite=17 if broken else 0,
            tokens=noise.randint(3200, 3700),
            supervised_tokens=noise.randint(1000, 1300),
            step_ms=slow,
        )
        if number == 1 or number % 10 == 0:
            worst = TapError(tap="layers.1.mlp.gate_proj.grad_lora_A", rel_l2=3e-6 * noise.uniform(0.7, 1.6))
            yield PrecisionEvent(step=number, rel_l2=2.2e-7 * noise.uniform(0.8, 1.3), worst=worst)
        if number % max(1, total // 6) == 0:
            validation = 0.33 + 2.0 * math.exp(-number / (total / 5))
            yield EvalEvent(step=number, loss=validation, tokens=2044, samples=40, best=validation < best)
            best = min(best, validation)
            yield CheckpointEvent(step=number, path=f"runs/sample/checkpoints/step-{number:06d}")


def begin(folder: Path, config: TrainConfig = CONFIG) -> RunDirectory:
    """An empty run directory with its settings."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run.control.mkdir(exist_ok=True)
    run.config.write_text(to_toml(config))
    return run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds-a-step", type=float, default=0.05)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--crash", action="store_true")
    options = parser.parse_args()
    run = begin(options.folder)
    status = StatusFile(run.status)
    with EventLog(run.events) as log:
        for event in events(options.steps):
            log.append(event)
            status.beat()
            if not isinstance(event, StepEvent):
                continue
            time.sleep(options.seconds_a_step)
            if options.crash and event.step > options.steps // 2:
                os._exit(137)
            if options.fail and event.step > options.steps // 2:
                log.append(ErrorEvent(message=f"step {event.step}: not finite for 3 steps in a row"))
                status.set_state("failed")
                return 4
            if "stop" in _obey(run, log, status, event.step):
                status.set_state("stopped")
                return 143
        log.append(DoneEvent(step=options.steps, adapter=str(run.adapter), best_step=250, reloaded_loss=0.31))
    status.set_state("finished")
    return 0


def _obey(run: RunDirectory, log: EventLog, status: StatusFile, number: int) -> list[str]:
    def state(name: str) -> None:
        log.append(StateEvent(state=name))
        status.set_state(name)

    words: list[str] = [*control.take(run.control)]
    if "stop" in words:
        state("stopping")
    if words:
        log.append(CheckpointEvent(step=number, path=str(run.checkpoints / f"step-{number:06d}")))
    if words[-1:] == ["pause"]:
        state("paused")
        while not (words := [*control.take(run.control)]):
            status.beat()
            time.sleep(0.05)
        state("stopping" if "stop" in words else "running")
    return words


if __name__ == "__main__":
    raise SystemExit(main())
