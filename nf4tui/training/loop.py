"""The training loop: from prepared data and an engine to a stream of events. It prints nothing.

    micro-batches of step n -> Engine.step -> StepEvent
        -> every few steps: precision probe, validation, checkpoint
        -> words from outside (pause, resume, checkpoint, stop), heard between two steps
    at the end: adapter/, read back and compared -> DoneEvent

Everything that step n does follows from (settings, data, n) and the engine's tensors, so a run resumed from
the checkpoint of step n takes the very steps that the uninterrupted run takes.
"""

import os
import time
from collections.abc import Callable, Generator, Sequence

from nf4tui.engine import Batch, StepResult, Update
from nf4tui.errors import TrainingFailedError
from nf4tui.runs.control import Word
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.events import (
    CheckpointEvent,
    EvalEvent,
    Event,
    LogEvent,
    StartEvent,
    StateEvent,
    StepEvent,
)
from nf4tui.training import snapshot
from nf4tui.training.prepared import Prepared
from nf4tui.training.progress import NONFINITE_LIMIT, Progress
from nf4tui.training.publish import publish
from nf4tui.training.snapshot import Snapshot

PAUSE_SECONDS = 0.1  # between two looks at the control words while paused

Poll = Callable[[], Sequence[Word]]  # the words that came since the last call


def train(
    prepared: Prepared, run: RunDirectory, *, attempt: int, resume: Snapshot | None, poll: Poll
) -> Generator[Event, None, None]:
    """Trains from the snapshot, or from the start, to the end of the run or to the word `stop`.

    The last event is a DoneEvent, or the CheckpointEvent that follows StateEvent("stopping").
    Raises TrainingFailedError after NONFINITE_LIMIT steps in a row whose numbers were not finite.
    """
    engine = prepared.engine
    progress = Progress()
    if resume is not None:
        progress = resume.progress
        snapshot.load(resume, prepared)
    yield _start(prepared, attempt, resume)
    yield from prepared.notes
    if prepared.validation and progress.step == 0:
        yield _evaluate(prepared, progress)

    while not _is_complete(prepared, progress):
        step = progress.step + 1
        began = time.perf_counter()
        batches = prepared.plan.micro_batches(step)
        update = prepared.update(step)
        result = engine.step(batches, update)
        elapsed_ms = 1e3 * (time.perf_counter() - began)
        progress = progress.after_step(applied=result.nonfinite == 0)
        yield _step_event(prepared, update, batches, result, elapsed_ms)
        if progress.nonfinite_in_a_row == NONFINITE_LIMIT:
            raise TrainingFailedError(
                f"step {step}: not finite for {NONFINITE_LIMIT} steps in a row, now in {result.nonfinite_tensor};"
                " none of them was applied; try a lower --lr, or look at the data of these steps"
            )
        if prepared.probe is not None and (step == 1 or step % prepared.probe_every == 0):
            yield prepared.probe.measure(engine, step)

        improved = False
        if prepared.validation and (step % prepared.eval_every == 0 or step == prepared.total_steps):
            evaluation = _evaluate(prepared, progress)
            progress = progress.after_evaluation(evaluation.loss)
            improved = evaluation.best
            yield evaluation

        words = poll()
        if "stop" in words:
            yield StateEvent(state="stopping")
        due = improved or step % prepared.save_every == 0 or _is_complete(prepared, progress)
        if due or not {"checkpoint", "pause", "stop"}.isdisjoint(words):
            path = snapshot.save(run.checkpoints, prepared, progress)
            yield CheckpointEvent(step=step, path=str(path))
        if "stop" not in words and _ends_with_pause(words):
            words = yield from _pause(poll)
        if "stop" in words and not _is_complete(prepared, progress):
            return

    if progress.step < prepared.total_steps:
        yield LogEvent(level="info", message=_early_stop_message(progress))
    yield publish(prepared, run, progress)


def _is_complete(prepared: Prepared, progress: Progress) -> bool:
    """All steps taken, or --early-stop validations in a row without improvement."""
    patience = prepared.config.early_stop
    impatient = patience is not None and progress.stale_evaluations >= patience
    return impatient or progress.step >= prepared.total_steps


def _evaluate(prepared: Prepared, progress: Progress) -> EvalEvent:
    """The mean over all supervised tokens of the validation data, with the engine's adapters of now."""
    sums = [prepared.engine.evaluate(batch) for batch in prepared.validation]
    tokens = sum(part.tokens for part in sums)
    loss = sum(part.total for part in sums) / tokens
    best = progress.step > 0 and progress.after_evaluation(loss).best_step == progress.step
    return EvalEvent(
        step=progress.step, loss=loss, tokens=tokens, samples=prepared.validation_samples, best=best
    )


def _pause(poll: Poll) -> Generator[Event, None, Sequence[Word]]:
    """Waits for `resume` or `stop`; returns the words that ended the wait. This step is saved already."""
    yield StateEvent(state="paused")
    while True:
        words = poll()
        if "stop" in words:
            yield StateEvent(state="stopping")
            return words
        if "resume" in words and not _ends_with_pause(words):
            yield StateEvent(state="running")
            return words
        time.sleep(PAUSE_SECONDS)


def _ends_with_pause(words: Sequence[Word]) -> bool:
    """Whether the later one of `pause` and `resume` is `pause`."""
    return next((word == "pause" for word in reversed(words) if word in ("pause", "resume")), False)


def _start(prepared: Prepared, attempt: int, resume: Snapshot | None) -> StartEvent:
    return StartEvent(
        attempt=attempt,
        resumed_from=None if resume is None else resume.progress.step,
        versions=prepared.circumstances.versions,
        model=prepared.config.model,
        device=prepared.engine.device,
        total_steps=prepared.total_steps,
        pid=os.getpid(),
        data=prepared.counts,
    )


def _step_event(
    prepared: Prepared, update: Update, batches: Sequence[Batch], result: StepResult, elapsed_ms: float
) -> StepEvent:
    return StepEvent(
        step=update.step,
        loss=result.loss,
        lr=update.lr,
        grad_norm=result.grad_norm,
        tokens=result.tokens,
        supervised_tokens=result.supervised_tokens,
        padded_tokens=sum(batch.input_ids.size for batch in batches),
        nonfinite=result.nonfinite,
        nonfinite_tensor=result.nonfinite_tensor,
        applied=result.nonfinite == 0,
        epoch=update.step / prepared.plan.steps_per_epoch,
        step_ms=elapsed_ms,
    )


def _early_stop_message(progress: Progress) -> str:
    return (
        f"stopped early after step {progress.step}: {progress.stale_evaluations} validations without"
        f" improvement on {progress.best_loss} at step {progress.best_step}"
    )
