"""What a checkpoint holds: adapters, optimiser, progress, and the circumstances a bit-exact resume needs.

    adapter_model.safetensors, adapter_config.json   the adapters in float32, as PEFT reads them
    optimizer.safetensors                            exp_avg.<tensor>, exp_avg_sq.<tensor>, float32
    state.json                                       progress, updates applied, circumstances, settings

There is no random state: all randomness is a function of the seed and the step (docs/architecture.md).
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from nf4tui.engine import OptimizerState
from nf4tui.errors import InputError
from nf4tui.models.adapter import CONFIG, WEIGHTS, read_adapter, write_adapter
from nf4tui.runs import checkpoint
from nf4tui.training.circumstances import Circumstances
from nf4tui.training.prepared import Prepared
from nf4tui.training.progress import Progress

STATE = "state.json"
ADAPTER_FILES = (WEIGHTS, CONFIG)
_OPTIMIZER = "optimizer.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A checkpoint that verified, without its tensors."""

    path: Path
    progress: Progress
    updates: int
    circumstances: Circumstances


def save(checkpoints: Path, prepared: Prepared, progress: Progress) -> Path:
    """Writes the checkpoint of progress.step, then removes those no longer kept. Returns its folder."""
    config, engine = prepared.config, prepared.engine
    optimizer = engine.optimizer_state()
    moments = {
        f"{moment}.{name}": tensor
        for moment in _MOMENTS
        for name, tensor in getattr(optimizer, moment).items()
    }
    state = {
        **progress.to_json(),
        "updates": optimizer.updates,
        **dataclasses.asdict(prepared.circumstances),
        "config": dataclasses.asdict(config),
    }

    def fill(folder: Path) -> None:
        write_adapter(
            folder,
            prepared.model,
            prepared.lora,
            engine.adapters(),
            base_model=config.model,
            base_sha256=prepared.circumstances.base,
        )
        save_file(moments, folder / _OPTIMIZER)
        (folder / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    path = checkpoint.write(checkpoints, progress.step, fill)
    checkpoint.prune(checkpoints, keep=config.keep, best_of=_best_step)
    return path


def load(snapshot: Snapshot, prepared: Prepared) -> None:
    """Puts the checkpoint's adapters and optimiser into the engine. Raises InputError if they do not fit."""
    load_adapter(snapshot.path, prepared)
    tensors = load_file(snapshot.path / _OPTIMIZER)
    moments = {
        moment: {
            name.removeprefix(f"{moment}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{moment}.")
        }
        for moment in _MOMENTS
    }
    state = OptimizerState(snapshot.updates, moments["exp_avg"], moments["exp_avg_sq"])
    prepared.engine.load_optimizer_state(state)


def load_adapter(folder: Path, prepared: Prepared) -> None:
    """Puts an adapter folder's tensors into the engine. Raises InputError unless every name, every shape
    and every scaling are those of the run."""
    found, tensors = read_adapter(folder, prepared.model)
    layers = prepared.model.num_hidden_layers
    if found.rslora != prepared.lora.rslora or [*found.adapted(layers)] != [*prepared.lora.adapted(layers)]:
        raise InputError(f"{folder}: its modules, ranks or scalings are not those of this run")
    prepared.engine.load_adapters(tensors)


def usable(checkpoints: Path) -> Iterator[Snapshot | InputError]:
    """Checkpoints from the newest on: those that verify, with the best checkpoint they refer to, and
    between them the errors that say why one does not."""
    for step in checkpoint.steps(checkpoints):
        try:
            snapshot = read(checkpoint.path_of(checkpoints, step))
            best = snapshot.progress.best_step
            if best is not None and best != step:
                read(checkpoint.path_of(checkpoints, best))
        except InputError as error:
            yield error
        else:
            yield snapshot


def read(path: Path) -> Snapshot:
    """Verifies a checkpoint. Raises InputError that names what is wrong."""
    checkpoint.check(path)
    state = _state(path)
    try:
        return Snapshot(
            path=path,
            progress=Progress.from_json(state),
            updates=state["updates"],
            circumstances=Circumstances.from_json(state),
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{path / STATE}: {error} is missing; another version wrote it") from None


def _best_step(path: Path) -> int | None:
    """The step that a checkpoint names as the best, None also where it cannot be read."""
    try:
        best = _state(path).get("best_step")
    except InputError:
        return None
    return best if isinstance(best, int) else None


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path / STATE}: cannot be read ({error})") from None
    if not isinstance(state, dict):
        raise InputError(f"{path / STATE}: must hold an object")
    return state
