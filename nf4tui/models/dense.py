"""Model weights whose projections are dense and made when they are asked for: merged models, to be measured.

Memory: the embedding, the head and one matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import float32_from_bf16, widen
from nf4tui.lora import PROJECTIONS
from nf4tui.models.merge import Merge
from nf4tui.models.qwen2 import BIASED_PROJECTIONS, Qwen2Config, module_name
from nf4tui.models.shards import Checkpoint
from nf4tui.models.weights import DenseTensor, LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A projection that `make` gives each time."""

    make: Callable[[], NDArray[np.float32]]

    def float32(self) -> NDArray[np.float32]:
        """[out, in]."""
        return self.make()


def stored_weights(checkpoint: Checkpoint, config: Qwen2Config) -> ModelWeights:
    """An unquantised checkpoint as it is stored."""

    def matrix(layer: int, projection: str, weight: str) -> NDArray[np.float32]:
        return widen(checkpoint.read(weight))

    return _weights(config, checkpoint.read, matrix)


def merged_weights(merge: Merge) -> ModelWeights:
    """What write_merged would write in bfloat16, without writing it."""

    def matrix(layer: int, projection: str, weight: str) -> NDArray[np.float32]:
        return float32_from_bf16(merge.bf16_matrix(layer, projection, weight))

    return _weights(merge.weights.config, merge.other, matrix)


def _weights(
    config: Qwen2Config,
    read: Callable[[str], NDArray[Any]],
    matrix: Callable[[int, str, str], NDArray[np.float32]],
) -> ModelWeights:
    def made(layer: int, projection: str) -> _Matrix:
        weight = f"{module_name(layer, projection)}.weight"
        return _Matrix(lambda: matrix(layer, projection, weight))

    def vector(name: str) -> NDArray[np.float32]:
        return widen(read(name))

    layers = tuple(
        LayerWeights(
            attn_norm=vector(f"model.layers.{layer}.input_layernorm.weight"),
            mlp_norm=vector(f"model.layers.{layer}.post_attention_layernorm.weight"),
            projections={name: made(layer, name) for name in PROJECTIONS},
            biases={name: vector(f"{module_name(layer, name)}.bias") for name in BIASED_PROJECTIONS},
        )
        for layer in range(config.num_hidden_layers)
    )
    head = None if config.tie_word_embeddings else DenseTensor(read("lm_head.weight"))
    embedding = DenseTensor(read("model.embed_tokens.weight"))
    return ModelWeights(config, embedding, layers, vector("model.norm.weight"), head)
