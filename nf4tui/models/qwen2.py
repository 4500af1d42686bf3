"""The Qwen2 architecture as config.json states it, and the tensors that it implies.

Read strictly: a field that would change the arithmetic and is not implemented (scaled RoPE, a sliding
window, another activation) is refused by name, since ignoring it trains another model without an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS, block_of
from nf4tui.quoting import quoted
from nf4tui.small_files import read_json_object

_DEFAULT_ROPE_THETA = 10000.0  # transformers' Qwen2Config
_DEFAULT_EPS = 1e-6
_MAX_LAYERS = 1000  # bounds the list of tensors that a config can make us write down
HF_BLOCKS = {"attn": "self_attn", "mlp": "mlp"}
BIASED_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    """Field names are Hugging Face's."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def projection_shape(self, projection: str) -> tuple[int, int]:
        """(out, in) of a projection's weight."""
        hidden, kv = self.hidden_size, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (hidden, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, hidden),
            "gate_proj": (self.intermediate_size, hidden),
            "up_proj": (self.intermediate_size, hidden),
            "down_proj": (hidden, self.intermediate_size),
        }[projection]


def module_name(layer: int, projection: str) -> str:
    """Hugging Face's name of a projection, `model.layers.3.self_attn.q_proj`."""
    return f"model.layers.{layer}.{HF_BLOCKS[block_of(projection)]}.{projection}"


def tensor_schema(config: Qwen2Config) -> dict[str, tuple[int, ...]]:
    """The tensors that an unquantised checkpoint must hold, by Hugging Face's names, with their shapes."""
    hidden = (config.hidden_size,)
    schema: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, *hidden)}
    for layer in range(config.num_hidden_layers):
        schema[f"model.layers.{layer}.input_layernorm.weight"] = hidden
        schema[f"model.layers.{layer}.post_attention_layernorm.weight"] = hidden
        for projection in PROJECTIONS:
            shape = config.projection_shape(projection)
            schema[f"{module_name(layer, projection)}.weight"] = shape
            if projection in BIASED_PROJECTIONS:
                schema[f"{module_name(layer, projection)}.bias"] = shape[:1]
    schema["model.norm.weight"] = hidden
    if not config.tie_word_embeddings:
        schema["lm_head.weight"] = (config.vocab_size, *hidden)
    return schema


def projection_weights(config: Qwen2Config) -> Iterator[tuple[int, str, str]]:
    """(layer, projection, Hugging Face name of its weight) for every matrix that NF4 quantises."""
    for layer in range(config.num_hidden_layers):
        for projection in PROJECTIONS:
            yield layer, projection, f"{module_name(layer, projection)}.weight"


def read_config(directory: Path) -> Qwen2Config:
    """The architecture in `directory`/config.json, as transformers 4 or 5 writes it.
    Raises InputError naming the field and its value."""
    path = directory / "config.json"
    if not directory.is_dir():
        raise InputError(f"{directory}: not a model directory")
    if not path.exists():
        raise InputError(f"{directory}: no config.json; a Hugging Face model directory is needed")
    return _Fields(path, read_json_object(path)).config()


@dataclass(frozen=True, slots=True)
class _Fields:
    path: Path
    raw: Mapping[str, Any]

    def refuse(self, field: str, why: str) -> InputError:
        return InputError(f"{self.path}: {field} is {quoted(self.raw.get(field))}: {why}")

    def count(self, field: str, default: int | None = None) -> int:
        if field not in self.raw and default is None:
            raise InputError(f"{self.path}: the field {field} is missing")
        value = self.raw.get(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise self.refuse(field, "must be a positive whole number")
        return value

    def positive(self, field: str, value: object) -> float:
        # 1e30: far above any setting, and below where float() of a whole number overflows.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise InputError(f"{self.path}: {field} is {quoted(value)}: must be a positive number")
        return float(value)

    def config(self) -> Qwen2Config:
        self.check_architecture()
        heads, hidden = self.count("num_attention_heads"), self.count("hidden_size")
        null = "num_key_value_heads" in self.raw and self.raw["num_key_value_heads"] is None
        kv_heads = heads if null else self.count("num_key_value_heads")
        layers = self.count("num_hidden_layers")
        if layers > _MAX_LAYERS:
            raise self.refuse("num_hidden_layers", f"at most {_MAX_LAYERS} are supported")
        if hidden % heads or (hidden // heads) % 2:
            raise self.refuse(
                "hidden_size", f"must be an even multiple of num_attention_heads ({heads}); RoPE pairs halves"
            )
        if heads % kv_heads:
            raise self.refuse("num_key_value_heads", f"must divide num_attention_heads ({heads})")
        if self.raw.get("head_dim") not in (None, hidden // heads):
            raise self.refuse(
                "head_dim",
                f"contradicts hidden_size / num_attention_heads = {hidden // heads}; not supported",
            )
        tied = self.raw.get("tie_word_embeddings", False)  # transformers' Qwen2Config
        if not isinstance(tied, bool):
            raise self.refuse("tie_word_embeddings", "must be true or false")
        return Qwen2Config(
            vocab_size=self.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self.count("intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=self.count("max_position_embeddings", default=32768),
            rope_theta=self.rope_theta(),
            rms_norm_eps=self.positive("rms_norm_eps", self.raw.get("rms_norm_eps", _DEFAULT_EPS)),
            tie_word_embeddings=tied,
        )

    def check_architecture(self) -> None:
        names = self.raw.get("architectures")
        if names is not None and names != ["Qwen2ForCausalLM"]:
            raise self.refuse("architectures", "only Qwen2ForCausalLM (Qwen2 and Qwen2.5) is supported")
        if self.raw.get("model_type") != "qwen2":
            raise self.refuse("model_type", "only qwen2 (Qwen2 and Qwen2.5) is supported")
        if self.raw.get("hidden_act", "silu") != "silu":
            raise self.refuse("hidden_act", "only silu is supported")
        if self.raw.get("use_sliding_window", False) is not False:
            raise self.refuse("use_sliding_window", "sliding-window attention is not supported")
        layer_types = self.raw.get("layer_types")
        if layer_types is not None and (
            not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
        ):
            raise self.refuse("layer_types", "only full_attention is supported")
        if self.raw.get("attention_dropout", 0) not in (0, 0.0):
            raise self.refuse("attention_dropout", "attention dropout is not supported; set it to 0")

    def rope_theta(self) -> float:
        """Top level in transformers 4, under rope_parameters in 5; both may be there if they agree."""
        found: dict[str, float] = {}
        if self.raw.get("rope_theta") is not None:
            found["rope_theta"] = self.positive("rope_theta", self.raw["rope_theta"])
        for field in ("rope_parameters", "rope_scaling"):
            table = self.raw.get(field)
            if table is None:
                continue
            if not isinstance(table, dict):
                raise self.refuse(field, "must be an object")
            kind = table.get("rope_type", table.get("type", "default"))
            extra = set(table) - {"rope_type", "type", "rope_theta"}
            if kind != "default" or extra:
                raise self.refuse(field, "scaled RoPE is not supported; only rope_type default is")
            if table.get("rope_theta") is not None:
                found[f"{field}.rope_theta"] = self.positive(f"{field}.rope_theta", table["rope_theta"])
        if len(set(found.values())) > 1:
            both = " and ".join(f"{name} = {value:g}" for name, value in found.items())
            raise InputError(f"{self.path}: {both} contradict each other; keep the right one")
        return next(iter(found.values()), _DEFAULT_ROPE_THETA)
