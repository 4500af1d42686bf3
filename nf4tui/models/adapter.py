"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

PEFT names a tensor `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight`; inside nf4tui it is
`layers.3.attn.q_proj.lora_A`. Shapes are the same: lora_A [R, in], lora_B [out, R].

Every key must be accounted for: an adapter whose keys half match would train or merge as another model.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS, LoraConfig, block_of, projection_path
from nf4tui.models.quoting import quoted
from nf4tui.models.qwen2 import HF_BLOCKS, Qwen2Config, module_name, read_json_object
from nf4tui.models.safetensors_file import open_safetensors
from nf4tui.models.shards import first_ten
from nf4tui.reference.bf16 import widen

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_PEFT = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,5})\.(?:self_attn|mlp)\.(\w+)\.(lora_[AB])(?:\.default)?\.weight"
)
# Fields that change what the adapter computes and are not implemented: (field, values that mean "off").
_UNSUPPORTED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("use_dora", (None, False)),
    ("bias", (None, "none")),
    ("lora_bias", (None, False)),
    ("modules_to_save", (None, [])),
    ("rank_pattern", (None, {})),
    ("alpha_pattern", (None, {})),
    ("fan_in_fan_out", (None, False)),
    ("layers_to_transform", (None,)),
    ("layer_replication", (None,)),
    ("exclude_modules", (None, [])),
    ("target_parameters", (None, [])),
    ("trainable_token_indices", (None, [])),
    ("alora_invocation_tokens", (None,)),
    ("use_qalora", (None, False)),
    ("use_bdlora", (None, False)),
    # pissa, olora, corda and loftq also change the base weights.
    ("init_lora_weights", (None, True, False, "gaussian", "orthogonal", "eva")),
    ("megatron_config", (None,)),
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
    for name in lora.tensor_names(config.num_hidden_layers):
        _, _, _, projection, part = name.split(".")
        out, into = config.projection_shape(projection)
        shapes[name] = (lora.rank, into) if part == "lora_A" else (out, lora.rank)
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
        f"{name} is {list(found[name])}, the model and rank {lora.rank} need {list(shape)}"
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
    lora = _read_lora_config(directory / CONFIG, config)
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


def _read_lora_config(path: Path, config: Qwen2Config) -> LoraConfig:
    raw = read_json_object(path)

    def refuse(field: str, why: str) -> InputError:
        return InputError(f"{path}: {field} is {quoted(raw.get(field))}: {why}")

    if raw.get("peft_type") != "LORA":
        raise refuse("peft_type", "only LORA adapters are supported")
    for field, off in _UNSUPPORTED:
        if raw.get(field) not in off:
            raise refuse(field, "not supported")
    rank: Any = raw.get("r")
    alpha: Any = raw.get("lora_alpha")
    dropout: Any = raw.get("lora_dropout", 0.0)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise refuse("r", "must be a positive whole number")
    if not _is_finite(alpha) or alpha <= 0:
        raise refuse("lora_alpha", "must be a positive number")
    if not _is_finite(dropout) or not 0 <= dropout < 1:
        raise refuse("lora_dropout", "must be at least 0 and below 1")
    rslora = raw.get("use_rslora", False)
    if not isinstance(rslora, bool):
        raise refuse("use_rslora", "must be true or false")
    targets = _targets(raw.get("target_modules"), config)
    if not targets:
        raise refuse("target_modules", f"must name some of {', '.join(PROJECTIONS)}")
    return LoraConfig(rank=rank, alpha=float(alpha), rslora=rslora, targets=targets, dropout=float(dropout))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _targets(given: object, config: Qwen2Config) -> tuple[str, ...]:
    """target_modules as PEFT reads it: names (suffixes of a module's name), or one regular expression that
    must match whole module names. Empty if it is neither, or does not treat all layers alike."""
    if given == "all-linear":
        return PROJECTIONS
    if isinstance(given, list) and all(name in PROJECTIONS for name in given):
        return tuple(name for name in PROJECTIONS if name in given)
    if not isinstance(given, str):
        return ()
    try:
        pattern = re.compile(given)
    except (re.error, OverflowError, RecursionError):
        return ()
    chosen = []
    for projection in PROJECTIONS:
        matches = {
            pattern.fullmatch(module_name(layer, projection)) is not None
            for layer in range(config.num_hidden_layers)
        }
        if len(matches) > 1:
            return ()
        if matches == {True}:
            chosen.append(projection)
    return tuple(chosen)


def write_adapter(
    directory: Path, config: Qwen2Config, lora: LoraConfig, tensors: Tensors, *, base_model: str
) -> None:
    """Writes both files into an existing directory and fsyncs them. The bytes are a function of the
    arguments. `base_model` becomes base_model_name_or_path."""
    check_tensors("adapter", config, lora, {name: array.shape for name, array in tensors.items()})
    from safetensors.numpy import save  # noqa: PLC0415 - keeps readers free of the library

    saved: dict[str, NDArray[np.float32]] = {
        peft_name(name): np.ascontiguousarray(tensors[name], dtype=np.float32)
        for name in lora.tensor_names(config.num_hidden_layers)
    }
    _write_durably(directory / WEIGHTS, save(saved, metadata={"format": "pt"}))
    text = json.dumps(_peft_config(lora, base_model), indent=2, sort_keys=True) + "\n"
    _write_durably(directory / CONFIG, text.encode())


def _peft_config(lora: LoraConfig, base_model: str) -> dict[str, Any]:
    alpha = int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha
    return {
        "alpha_pattern": {},
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "rank_pattern": {},
        "target_modules": sorted(lora.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": lora.rslora,
    }


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
