"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

PEFT names a tensor `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight`; inside nf4tui it is
`layers.3.attn.q_proj.lora_A`. Shapes are the same: lora_A [R, in], lora_B [out, R].

Every key must be accounted for: an adapter whose keys half match would train or merge as another model.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import widen
from nf4tui.engine import Tensors
from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.lora import PROJECTIONS, LoraConfig, block_of, projection_path
from nf4tui.models.peft_config import config_text, read_lora_config
from nf4tui.models.qwen2 import HF_BLOCKS, Qwen2Config
from nf4tui.models.safetensors_file import open_safetensors
from nf4tui.models.safetensors_writer import TensorSpec, write_safetensors
from nf4tui.models.shards import first_ten
from nf4tui.quoting import quoted
from nf4tui.small_files import read_json_object

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_BASE = "nf4tui_base_sha256"  # in the weights' metadata: models.load.fingerprint of the base
_PEFT = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,5})\.(?:self_attn|mlp)\.(\w+)\.(lora_[AB])(?:\.default)?\.weight"
)


def peft_name(name: str) -> str:
    """PEFT's saved name of one of our adapter tensors."""
    _, layer, block, projection, part = name.split(".")
    return f"{_PREFIX}model.layers.{layer}.{HF_BLOCKS[block]}.{projection}.{part}.weight"


def our_name(name: str) -> str | None:
    """Our name of a PEFT tensor, saved (`.lora_A.weight`) or in memory (`.lora_A.default.weight`);
    None if it is not a LoRA matrix of a Qwen2 projection."""
    match = _PEFT.fullmatch(name)
    if match is None or match[2] not in PROJECTIONS:
        return None
    ours = f"{projection_path(int(match[1]), match[2])}.{match[3]}"
    return ours if f".{HF_BLOCKS[block_of(match[2])]}." in name else None


def tensor_shapes(config: Qwen2Config, lora: LoraConfig) -> dict[str, tuple[int, int]]:
    """Every adapter tensor's shape by our name, in canonical order."""
    shapes: dict[str, tuple[int, int]] = {}
    for module in lora.adapted(config.num_hidden_layers):
        out, into = config.projection_shape(module.path.rpartition(".")[2])
        shapes[f"{module.path}.lora_A"] = (module.rank, into)
        shapes[f"{module.path}.lora_B"] = (out, module.rank)
    return shapes


def check_tensors(
    where: str, config: Qwen2Config, lora: LoraConfig, found: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises InputError, listing both sides, unless `found` (name to shape) is exactly what `lora` needs."""
    needed = tensor_shapes(config, lora)
    if missing := [name for name in needed if name not in found]:
        raise InputError(f"{where}: missing adapter tensors: {first_ten(missing)}")
    if foreign := sorted(name for name in found if name not in needed):
        raise InputError(f"{where}: adapter tensors that its config does not imply: {first_ten(foreign)}")
    wrong = [
        f"{name} is {list(found[name])}, the model and rank {lora.rank_of(name.rpartition('.')[0])} need {list(shape)}"
        for name, shape in needed.items()
        if tuple(found[name]) != shape
    ]
    if wrong:
        raise InputError(f"{where}: the adapter does not fit this base: {first_ten(wrong)}")


def read_adapter(directory: Path, config: Qwen2Config) -> tuple[LoraConfig, Tensors]:
    """The adapter's settings and its tensors as float32. Raises InputError by field or tensor name."""
    if not (directory / CONFIG).exists():
        raise InputError(f"{directory}: no {CONFIG}; a PEFT adapter directory is needed")
    if not (directory / WEIGHTS).exists():
        pickled = (directory / "adapter_model.bin").exists()
        hint = (
            "; adapter_model.bin is a pickle and is refused, save it again as safetensors" if pickled else ""
        )
        raise InputError(f"{directory}: no {WEIGHTS}{hint}")
    lora = read_lora_config(directory / CONFIG, config)
    file = open_safetensors(directory / WEIGHTS)
    names: dict[str, str] = {}
    foreign = []
    for saved in file.tensors:
        name = our_name(saved)
        if name is None:
            foreign.append(saved)
        elif name in names:
            raise InputError(f"{file.path}: {quoted(saved)} and {quoted(names[name])} are the same tensor")
        else:
            names[name] = saved
    if foreign:
        raise InputError(
            f"{file.path}: not LoRA matrices of a Qwen2 projection: {first_ten(sorted(foreign))}"
            f"{_foreign_hint(foreign)}"
        )
    check_tensors(
        str(file.path), config, lora, {name: file.tensors[saved].shape for name, saved in names.items()}
    )
    tensors: Tensors = {}
    for name in lora.tensor_names(config.num_hidden_layers):
        saved = names[name]
        if file.tensors[saved].dtype not in ("F32", "F16", "BF16"):
            raise InputError(f"{file.path}: {saved!r} is {file.tensors[saved].dtype}, a float type is needed")
        tensors[name] = widen(file.read(saved))
        bad = tensors[name].size - int(np.count_nonzero(np.isfinite(tensors[name])))
        if bad:
            raise InputError(f"{file.path}: {saved!r} has {bad} non-finite values")
    return lora, tensors


def _foreign_hint(names: list[str]) -> str:
    """What foreign tensors are, where their names say it, and what to do."""
    for part, what in (
        ("lora_magnitude_vector", "DoRA is"),
        ("lora_embedding_", "adapters on embeddings are"),
        ("embed_tokens", "trained embeddings are"),
        ("lm_head", "a trained head is"),
        ("modules_to_save", "fully trained modules are"),
        (".bias", "trained biases are"),
    ):
        if any(part in name for name in names):
            return f" ({what} not supported; train a plain LoRA adapter, or merge this one with PEFT)"
    return ""


def check_base(directory: Path, base_sha256: str) -> None:
    """Raises InputError, both sides named, if the adapter says that it was trained on another base than the
    one with this fingerprint. Only adapters that nf4tui wrote say so."""
    stated = open_safetensors(directory / WEIGHTS).metadata.get(_BASE)
    if stated is not None and stated != base_sha256:
        name = read_json_object(directory / CONFIG).get("base_model_name_or_path")
        raise InputError(
            f"{directory}: was trained on another base, {quoted(name)} with hash {quoted(stated[:12])}, but this"
            f" one has {base_sha256[:12]}; use the model that it was trained on"
        )


def write_adapter(
    directory: Path,
    config: Qwen2Config,
    lora: LoraConfig,
    tensors: Tensors,
    *,
    base_model: str,
    base_sha256: str | None = None,
) -> None:
    """Writes both files into an existing directory and fsyncs them. The bytes are a function of the
    arguments. `base_model` becomes base_model_name_or_path; base_sha256 is what check_base compares.
    Raises TrainingFailedError, before anything is written, if a value is not finite."""
    check_tensors("adapter", config, lora, {name: array.shape for name, array in tensors.items()})
    saved: dict[str, NDArray[np.float32]] = {}
    for name in lora.tensor_names(config.num_hidden_layers):
        tensor = np.ascontiguousarray(tensors[name], dtype=np.float32)
        bad = tensor.size - int(np.count_nonzero(np.isfinite(tensor)))
        if bad:
            raise TrainingFailedError(f"{name} has {bad} non-finite values; the adapter is not written")
        saved[peft_name(name)] = tensor
    metadata = {"format": "pt"} | ({} if base_sha256 is None else {_BASE: base_sha256})
    specs = {name: TensorSpec("F32", tensor.shape) for name, tensor in saved.items()}
    write_safetensors(directory / WEIGHTS, specs, saved.values(), metadata=metadata)
    with (directory / CONFIG).open("w", encoding="utf-8") as file:
        file.write(config_text(lora, config, base_model))
        file.flush()
        os.fsync(file.fileno())
