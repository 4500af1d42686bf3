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


@dataclass(frozen=True, slots=True)
class ModuleLora:
    """One projection's adapter. path: `layers.3.attn.q_proj`."""

    path: str
    rank: int
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The adapters' shape and scaling. targets: the projections that have one, of PROJECTIONS.

    modules: None, and every layer has an adapter of `rank` and `alpha` at each target; or exactly the
    projections that have one, in canonical order, with ranks and alphas of their own (adapters made elsewhere).
    """

    rank: int = 16
    alpha: float = 32.0
    rslora: bool = False
    targets: tuple[str, ...] = PROJECTIONS
    dropout: float = 0.0
    modules: tuple[ModuleLora, ...] | None = None

    def adapted(self, layers: int) -> Iterator[ModuleLora]:
        """Every projection that has an adapter, in the one canonical order: by layer, then projection."""
        if self.modules is not None:
            yield from self.modules
            return
        for layer in range(layers):
            for projection in PROJECTIONS:
                if projection in self.targets:
                    yield ModuleLora(projection_path(layer, projection), self.rank, self.alpha)

    def rank_of(self, path: str) -> int:
        """The rank at a projection that has an adapter. Raises KeyError."""
        return self._module(path).rank

    def scaling_of(self, path: str) -> float:
        """The factor of the delta at a projection that has an adapter. Raises KeyError."""
        module = self._module(path)
        return module.alpha / (math.sqrt(module.rank) if self.rslora else module.rank)

    def tensor_names(self, layers: int) -> Iterator[str]:
        """Names of all adapter tensors in their one canonical order: layer, projection, A before B."""
        for module in self.adapted(layers):
            for part in ("lora_A", "lora_B"):
                yield f"{module.path}.{part}"

    def _module(self, path: str) -> ModuleLora:
        if self.modules is None:
            if path.rpartition(".")[2] not in self.targets:
                raise KeyError(path)
            return ModuleLora(path, self.rank, self.alpha)
        for module in self.modules:
            if module.path == path:
                return module
        raise KeyError(path)
