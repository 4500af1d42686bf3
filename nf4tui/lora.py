"""LoRA's settings and the names of its tensors.

delta(x) = scaling * (x A^T) B^T with A [R, in], B [out, R]; scaling = alpha / R (Hu et al. 2021,
arXiv 2106.09685) or alpha / sqrt(R) with rsLoRA (Kalajdzievski 2023, arXiv 2312.03732).

Inside nf4tui a tensor is named by its tap: `layers.3.attn.q_proj.lora_A`. Only models/adapter.py
knows PEFT's names.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
PROJECTIONS = ATTENTION_PROJECTIONS + MLP_PROJECTIONS


def block_of(projection: str) -> str:
    """`attn` or `mlp`: the part of a layer that holds `projection`."""
    return "attn" if projection in ATTENTION_PROJECTIONS else "mlp"


def projection_path(layer: int, projection: str) -> str:
    """The tap prefix of a projection, `layers.3.attn.q_proj`."""
    return f"layers.{layer}.{block_of(projection)}.{projection}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The adapters' shape and scaling. targets: the projections that have one, of PROJECTIONS."""

    rank: int = 16
    alpha: float = 32.0
    rslora: bool = False
    targets: tuple[str, ...] = PROJECTIONS
    dropout: float = 0.0

    @property
    def scaling(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def tensor_names(self, layers: int) -> Iterator[str]:
        """Names of all adapter tensors in their one canonical order: layer, projection, A before B."""
        for layer in range(layers):
            for projection in PROJECTIONS:
                if projection in self.targets:
                    for part in ("lora_A", "lora_B"):
                        yield f"{projection_path(layer, projection)}.{part}"
