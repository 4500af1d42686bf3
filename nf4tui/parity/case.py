"""A recorded oracle: a base model, an adapter, a batch, and what transformers, PEFT and bitsandbytes made
of them in float32.

    CASE/  base/  adapter/  golden.safetensors  case.json  [bnb4/]  [bnb4-dq/]

golden.safetensors holds the batch (input_ids, attention_mask, labels aligned with input_ids), the NF4 bytes
of the base (nf4.<module>.packed, .absmax), hidden.0 to hidden.L (the last after the final norm), logits,
loss, grad.<name>, grad_norm, after_step.<name> (one AdamW step fed with grad.*) and loss_after_step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import PADDING, Batch, Update
from nf4tui.errors import InputError
from nf4tui.models.adapter import our_name
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.safetensors_file import SafetensorsFile, open_safetensors
from nf4tui.models.shards import first_ten
from nf4tui.small_files import read_json_object

Array = NDArray[Any]

QUANTISED_BASES = ("bnb4", "bnb4-dq")
_SINGLE = ("input_ids", "attention_mask", "labels", "logits", "loss", "grad_norm", "loss_after_step")
_OPTIMIZER = {"lr", "betas", "eps", "weight_decay", "clip"}


@dataclass(frozen=True, slots=True)
class Case:
    """A checked case. attended: [B, T] bool, the rows to compare. update: the optimiser's settings."""

    directory: Path
    golden: SafetensorsFile
    batch: Batch
    attended: NDArray[np.bool_]
    update: Update

    def tensor(self, name: str) -> Array:
        """A recorded tensor by its name in golden.safetensors."""
        return self.golden.read(name)

    def scalar(self, name: str) -> float:
        """A recorded number."""
        return float(self.golden.read(name).reshape(-1)[0])

    def adapter_tensors(self, prefix: str) -> dict[str, Array]:
        """`grad.` or `after_step.` tensors by our adapter names."""
        return {
            name: self.golden.read(saved)
            for saved in self.golden.tensors
            if saved.startswith(prefix) and (name := our_name(saved.removeprefix(prefix))) is not None
        }


def read_case(directory: Path) -> Case:
    """Opens and checks a case. Raises InputError naming the file and what is missing or wrong in it."""
    if not directory.is_dir():
        raise InputError(f"--case {directory}: not a directory")
    settings = directory / "case.json"
    update = _update(settings, read_json_object(settings))
    golden = open_safetensors(directory / "golden.safetensors")
    if missing := [name for name in _SINGLE if name not in golden.tensors]:
        raise InputError(f"{golden.path}: missing tensors: {first_ten(missing)}")
    for name in ("loss", "grad_norm", "loss_after_step"):
        if golden.read(name).size != 1:
            raise InputError(f"{golden.path}: {name} must hold one number")
    batch, attended = _batch(golden)
    return Case(directory, golden, batch, attended, update)


def check_against(case: Case, config: Qwen2Config, names: list[str]) -> None:
    """Raises InputError unless the case records every layer, every NF4 matrix and every adapter tensor of
    the model and adapter beside it, with fitting shapes."""
    golden, shape = case.golden, case.batch.input_ids.shape
    needed: dict[str, tuple[int, ...]] = {"logits": (*shape, config.vocab_size)}
    for layer in range(config.num_hidden_layers + 1):
        needed[f"hidden.{layer}"] = (*shape, config.hidden_size)
    missing = [name for name in needed if name not in golden.tensors]
    for prefix in ("grad.", "after_step."):
        found = case.adapter_tensors(prefix)
        missing += [f"{prefix}{name}" for name in names if name not in found]
        if foreign := sorted(set(found) - set(names)):
            raise InputError(
                f"{golden.path}: {prefix}* of tensors that the adapter lacks: {first_ten(foreign)}"
            )
    if missing:
        raise InputError(f"{golden.path}: missing tensors: {first_ten(missing)}")
    wrong = [
        f"{name} is {list(golden.tensors[name].shape)}, the model and batch imply {list(size)}"
        for name, size in needed.items()
        if golden.tensors[name].shape != size
    ]
    if wrong:
        raise InputError(f"{golden.path}: {first_ten(wrong)}")
    ids = case.batch.input_ids
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise InputError(f"{golden.path}: input_ids outside the vocabulary of {config.vocab_size}")
    if shape[1] > config.max_position_embeddings:
        raise InputError(
            f"{golden.path}: {shape[1]} positions, the model takes {config.max_position_embeddings}"
        )


def _batch(golden: SafetensorsFile) -> tuple[Batch, NDArray[np.bool_]]:
    ids, mask, labels = (golden.read(name) for name in ("input_ids", "attention_mask", "labels"))
    if ids.ndim != 2 or ids.shape != mask.shape or ids.shape != labels.shape or 0 in ids.shape:
        raise InputError(f"{golden.path}: input_ids, attention_mask and labels must have one shape [B, T]")
    if any(array.dtype.kind not in "iu" for array in (ids, labels)) or not np.isin(mask, (0, 1)).all():
        raise InputError(f"{golden.path}: ids and labels must be integers, attention_mask 0 or 1")
    attended = mask.astype(np.bool_)
    if (np.diff(mask.astype(np.int8), axis=1) > 0).any() or not attended[:, 0].all():
        raise InputError(f"{golden.path}: attention_mask must be 1, then 0 (padding on the right)")
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    documents = np.where(attended, 0, PADDING).astype(np.int32)
    batch = Batch(ids.astype(np.int32), labels.astype(np.int32), positions, documents)
    if batch.supervised_tokens == 0:
        raise InputError(f"{golden.path}: labels supervise nothing")
    return batch, attended


def _update(path: Path, settings: Mapping[str, Any]) -> Update:
    optimizer = settings.get("optimizer")
    if not isinstance(optimizer, dict) or not optimizer.keys() >= _OPTIMIZER:
        raise InputError(f"{path}: optimizer must hold {', '.join(sorted(_OPTIMIZER))}")
    betas = optimizer["betas"]
    if not isinstance(betas, list) or len(betas) != 2:
        raise InputError(f"{path}: optimizer.betas must be two numbers")
    values = {**optimizer, "beta1": betas[0], "beta2": betas[1]}
    wanted = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip")
    for name in wanted:
        if isinstance(values[name], bool) or not isinstance(values[name], int | float):
            raise InputError(f"{path}: optimizer: {name} is {values[name]!r}, must be a number")
    return Update(
        step=1,
        lr=float(values["lr"]),
        beta1=float(values["beta1"]),
        beta2=float(values["beta2"]),
        eps=float(values["eps"]),
        weight_decay=float(values["weight_decay"]),
        clip=float(values["clip"]),
    )
