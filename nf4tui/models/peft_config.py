"""adapter_config.json of PEFT as a LoraConfig, and back.

Every field must be accounted for: one that changes what the adapter computes and is not implemented is refused
by name, and so is one that this version of nf4tui does not know, unless it is off. Names in target_modules that
the model has no module for are passed over, as PEFT does: the tensors must be those of the modules found.
"""

import json
import math
from pathlib import Path
from typing import Any

from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS, LoraConfig, ModuleLora, projection_path
from nf4tui.models.peft_modules import Match, Patterns, is_all_linear, matches
from nf4tui.models.qwen2 import Qwen2Config, module_name
from nf4tui.quoting import quoted
from nf4tui.small_files import read_json_object

_OFF: tuple[Any, ...] = (None, False, "", [], {})
_PLAIN_LORA = "train a plain LoRA adapter, or merge this one with PEFT"
_EMBEDDINGS = ("model.embed_tokens", "lm_head")
# What changes the adapter's arithmetic and is not implemented: field -> values that mean "off", what to do.
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_dora": (_OFF, f"DoRA is not supported; {_PLAIN_LORA}"),
    "bias": ((None, "none"), f"trained biases are not supported; {_PLAIN_LORA}"),
    "lora_bias": (_OFF, f"biases in LoRA are not supported; {_PLAIN_LORA}"),
    "modules_to_save": (_OFF, f"fully trained modules are not supported; {_PLAIN_LORA}"),
    "target_parameters": (_OFF, _PLAIN_LORA),
    "trainable_token_indices": (_OFF, f"trained token embeddings are not supported; {_PLAIN_LORA}"),
    "layer_replication": (_OFF, f"replicated layers are not supported; {_PLAIN_LORA}"),
    "fan_in_fan_out": (_OFF, "Qwen2's weights are [out, in]; set it to false"),
    "alora_invocation_tokens": (_OFF, f"aLoRA is not supported; {_PLAIN_LORA}"),
    "use_qalora": (_OFF, f"QA-LoRA is not supported; {_PLAIN_LORA}"),
    "use_bdlora": (_OFF, f"BD-LoRA is not supported; {_PLAIN_LORA}"),
    "arrow_config": (_OFF, f"Arrow is not supported; {_PLAIN_LORA}"),
    "megatron_config": (_OFF, _PLAIN_LORA),
    # pissa, olora, corda, loftq and lora_ga also change the base weights.
    "init_lora_weights": (
        (None, True, False, "gaussian", "orthogonal", "eva"),
        "it changes the base's weights; convert it to a plain LoRA adapter with PEFT",
    ),
}
# What says how the adapter was made, or is read below.
_KNOWN = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"),
        *("peft_version", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core"),
        *("qalora_group_size", "ensure_weight_tying", "runtime_config"),
    )
)


class _Fields:
    """The raw object, and refusals that name its file and field."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = read_json_object(path)

    def get(self, field: str) -> Any:
        return self.raw.get(field)

    def refusal(self, field: str, why: str) -> InputError:
        return InputError(f"{self.path}: {field} is {quoted(self.raw.get(field))}: {why}")

    def names(self, field: str) -> list[str]:
        """A list of text; one text is a list of one."""
        value = self.raw.get(field)
        if value is None or value == "":
            return []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.refusal(field, "must be a list of names")
        return value

    def pattern(self, field: str) -> dict[str, Any]:
        """A mapping of patterns to positive numbers."""
        value = self.raw.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.refusal(field, "must map patterns to numbers")
        for key, number in value.items():
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not _is_finite(number) or number <= 0 or (field == "rank_pattern" and not whole):
                what = "a positive whole number" if field == "rank_pattern" else "a positive number"
                raise self.refusal(field, f"{quoted(key)} must be {what}")
        return value


def read_lora_config(path: Path, config: Qwen2Config) -> LoraConfig:
    """The adapter's settings. Raises InputError by field."""
    fields = _Fields(path)
    _check_supported(fields)
    rank, alpha, dropout = fields.get("r"), fields.get("lora_alpha"), fields.raw.get("lora_dropout", 0.0)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise fields.refusal("r", "must be a positive whole number")
    if not _is_finite(alpha) or alpha <= 0:
        raise fields.refusal("lora_alpha", "must be a positive number")
    if not _is_finite(dropout) or not 0 <= dropout < 1:
        raise fields.refusal("lora_dropout", "must be at least 0 and below 1")
    rslora = fields.raw.get("use_rslora", False)
    if not isinstance(rslora, bool):
        raise fields.refusal("use_rslora", "must be true or false")
    modules = _modules(fields, config, rank, float(alpha))
    targets = tuple(name for name in PROJECTIONS if any(m.path.endswith(f".{name}") for m in modules))
    lora = LoraConfig(rank=rank, alpha=float(alpha), rslora=rslora, targets=targets, dropout=float(dropout))
    if tuple(lora.adapted(config.num_hidden_layers)) == modules:
        return lora
    return LoraConfig(
        rank=rank, alpha=float(alpha), rslora=rslora, targets=targets, dropout=float(dropout), modules=modules
    )


def _check_supported(fields: _Fields) -> None:
    if fields.get("peft_type") != "LORA":
        raise fields.refusal("peft_type", f"only LORA adapters are supported; {_PLAIN_LORA}")
    for field, (off, advice) in _UNSUPPORTED.items():
        if fields.get(field) not in off:
            raise fields.refusal(field, f"not supported: {advice}")
    for field in sorted(fields.raw.keys() - _KNOWN - _UNSUPPORTED.keys()):
        if fields.get(field) not in _OFF:
            why = f"an unknown setting, which may change what the adapter computes; {_PLAIN_LORA}"
            raise fields.refusal(field, why)


def _modules(fields: _Fields, config: Qwen2Config, rank: int, alpha: float) -> tuple[ModuleLora, ...]:
    """The projections that have an adapter, with their own ranks and alphas."""
    ranks, alphas = fields.pattern("rank_pattern"), fields.pattern("alpha_pattern")
    targets, excluded = fields.get("target_modules"), fields.get("exclude_modules")
    patterns = Patterns(
        targets=targets if isinstance(targets, str) else fields.names("target_modules"),
        excluded=excluded if isinstance(excluded, str) else fields.names("exclude_modules"),
        layers=_layers(fields),
        layers_pattern=fields.names("layers_pattern"),
        rank_pattern=list(ranks),
        alpha_pattern=list(alphas),
    )
    if not patterns.targets:
        raise fields.refusal("target_modules", f"must name some of {', '.join(PROJECTIONS)}")
    paths = {
        module_name(layer, projection): projection_path(layer, projection)
        for layer in range(config.num_hidden_layers)
        for projection in PROJECTIONS
    }
    # PEFT leaves the head out of `all-linear`.
    others = () if is_all_linear(patterns.targets) else _EMBEDDINGS
    try:
        found = matches(patterns, [*paths, *others])
    except ValueError as error:
        raise InputError(f"{fields.path}: {error}; name the modules in target_modules instead") from None
    if foreign := [match.name for match in found if match.name in others]:
        why = f"adapters on {' and '.join(foreign)} are not supported; {_PLAIN_LORA}"
        raise fields.refusal("target_modules", why)
    if not found:
        raise fields.refusal("target_modules", f"matches none of {', '.join(PROJECTIONS)} in any layer")
    return tuple(_module(match, paths, ranks, alphas, rank, alpha) for match in found)


def _module(
    match: Match,
    paths: dict[str, str],
    ranks: dict[str, int],
    alphas: dict[str, Any],
    rank: int,
    alpha: float,
) -> ModuleLora:
    own_rank = rank if match.rank_key is None else ranks[match.rank_key]
    own_alpha = alpha if match.alpha_key is None else float(alphas[match.alpha_key])
    return ModuleLora(paths[match.name], own_rank, own_alpha)


def _layers(fields: _Fields) -> list[int] | None:
    value = fields.get("layers_to_transform")
    layers = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if layers is None:
        return None
    if not isinstance(layers, list) or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise fields.refusal("layers_to_transform", "must be a list of layer numbers")
    if isinstance(fields.get("target_modules"), str) and layers:
        raise fields.refusal("layers_to_transform", "goes with a list of target_modules only, in PEFT too")
    return layers


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def config_text(lora: LoraConfig, config: Qwen2Config, base_model: str) -> str:
    """adapter_config.json of an adapter: PEFT reads back the same modules, ranks and scalings."""
    raw = {
        "alpha_pattern": {},
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": _number(lora.alpha),
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
    if lora.modules is not None:
        names = {
            projection_path(layer, projection): module_name(layer, projection)
            for layer in range(config.num_hidden_layers)
            for projection in PROJECTIONS
        }
        raw["target_modules"] = [names[module.path] for module in lora.modules]
        raw["rank_pattern"] = {names[m.path]: m.rank for m in lora.modules if m.rank != lora.rank}
        raw["alpha_pattern"] = {
            names[m.path]: _number(m.alpha) for m in lora.modules if m.alpha != lora.alpha
        }
    return json.dumps(raw, indent=2, sort_keys=True) + "\n"


def _number(value: float) -> float:
    return int(value) if math.isfinite(value) and float(value).is_integer() else value
