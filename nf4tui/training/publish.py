"""The end of a run: adapter/, written whole, read back, and shown to give the loss it had before.

The adapter is that of the best validation, or of the last step where there was none. Its files are copies
of the verified checkpoint's; state.json beside them says which step it is, and generation_config.json which
tokens end an answer, since a base model's own files name another one.
"""

import json
import shutil
from pathlib import Path

from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.runs import checkpoint, durable
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.events import DoneEvent
from nf4tui.training import snapshot
from nf4tui.training.prepared import Prepared
from nf4tui.training.progress import Progress

GENERATION_CONFIG = "generation_config.json"


def publish(prepared: Prepared, run: RunDirectory, progress: Progress) -> DoneEvent:
    """Writes adapter/ unless it is there already, and checks it. The engine holds it afterwards.

    Raises TrainingFailedError where the adapter read back is not the adapter trained.
    """
    engine = prepared.engine
    step = progress.step if progress.best_step is None else progress.best_step
    source = checkpoint.path_of(run.checkpoints, step)
    try:
        chosen = snapshot.read(source).progress
    except InputError as error:
        raise TrainingFailedError(
            f"the best checkpoint was damaged while training went on: {error}"
        ) from error
    if step != progress.step:
        snapshot.load_adapter(source, prepared)
    before = engine.evaluate(prepared.check_batch)
    if not is_published(run.adapter, source):
        _replace(run.adapter, source, chosen, prepared.eos_token_ids)
    try:
        snapshot.load_adapter(run.adapter, prepared)
    except InputError as error:
        raise TrainingFailedError(f"the adapter just written cannot be read back: {error}") from error
    after = engine.evaluate(prepared.check_batch)
    if not (after.total == before.total and after.tokens == before.tokens):
        raise TrainingFailedError(
            f"{run.adapter}: read back, the adapter gives a summed loss of {after.total}, not {before.total};"
            f" take the adapter from {source}"
        )
    loss = after.total / after.tokens
    return DoneEvent(
        step=progress.step, adapter=str(run.adapter), best_step=progress.best_step, reloaded_loss=loss
    )


def is_published(adapter: Path, source: Path) -> bool:
    """Whether adapter/ holds the very files of the checkpoint `source`."""
    return all(
        (adapter / name).is_file() and durable.sha256(adapter / name) == durable.sha256(source / name)
        for name in snapshot.ADAPTER_FILES
    )


def _replace(adapter: Path, source: Path, chosen: Progress, eos_token_ids: tuple[int, ...]) -> None:
    """adapter/ by rename. A folder of that name that is not this adapter is kept as adapter.old-N."""
    temporary = adapter.parent / f"{durable.TEMPORARY}{adapter.name}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    for name in snapshot.ADAPTER_FILES:
        shutil.copyfile(source / name, temporary / name)
        durable.sync(temporary / name)
    for name, content in (
        (snapshot.STATE, chosen.to_json()),
        (GENERATION_CONFIG, {"eos_token_id": list(eos_token_ids)}),
    ):
        durable.write_file(temporary / name, json.dumps(content, indent=2).encode() + b"\n")
    if adapter.exists():
        number = 1
        while (old := adapter.parent / f"{adapter.name}.old-{number}").exists():
            number += 1
        adapter.rename(old)
    temporary.rename(adapter)
    durable.sync(adapter.parent)
