"""Small models with real-looking weights, packed batches and a finite-difference check.

Inputs are made to expose faults: LoRA B is never zero, alpha differs from the rank, norms and biases are
away from 1 and 0, and batches hold several documents and padding.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32
from nf4tui.engine import IGNORE_INDEX, PADDING, Batch, Tensors
from nf4tui.lora import PROJECTIONS, LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.weights import DenseTensor, LayerWeights, ModelWeights, Nf4Tensor
from nf4tui.reference.nf4 import nf4_quantize

Array = NDArray[Any]

# Documents of each row, then padding up to the longest row.
ROWS = ((9, 1, 6), (5, 4))


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "golden" / "tied"


@pytest.fixture(scope="session")
def make_weights() -> Callable[..., ModelWeights]:
    """make_weights(heads=, kv_heads=, head_dim=, tied=, seed=): two layers, 61 tokens, odd sizes."""

    def make(
        *, heads: int = 4, kv_heads: int = 2, head_dim: int = 8, tied: bool = True, seed: int = 0
    ) -> ModelWeights:
        config = Qwen2Config(
            vocab_size=61,
            hidden_size=heads * head_dim,
            intermediate_size=45,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=512,
            rope_theta=1e4,
            rms_norm_eps=1e-6,
            tie_word_embeddings=tied,
        )
        random = np.random.default_rng(seed)

        def normal(shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
            return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

        def layer() -> LayerWeights:
            projections = {}
            for name in PROJECTIONS:
                shape = config.projection_shape(name)
                projections[name] = Nf4Tensor(*nf4_quantize(normal(shape, 1.5 / shape[1] ** 0.5)), shape)
            biases = {
                name: normal(config.projection_shape(name)[:1], 0.5)
                for name in ("q_proj", "k_proj", "v_proj")
            }
            width = (config.hidden_size,)
            return LayerWeights(1 + normal(width, 0.2), 1 + normal(width, 0.2), projections, biases)

        def table() -> DenseTensor:
            return DenseTensor(bf16_from_float32(normal((config.vocab_size, config.hidden_size), 0.5)))

        layers = tuple(layer() for _ in range(config.num_hidden_layers))
        final_norm = 1 + normal((config.hidden_size,), 0.2)
        return ModelWeights(config, table(), layers, final_norm, None if tied else table())

    return make


@pytest.fixture(scope="session")
def make_adapters() -> Callable[..., Tensors]:
    """make_adapters(config, lora, seed=): B is not zero."""

    def make(config: Qwen2Config, lora: LoraConfig, seed: int = 1) -> Tensors:
        random = np.random.default_rng(seed)
        tensors = initial_adapters(config, lora, seed)
        for name in tensors:
            if name.endswith("lora_B"):
                tensors[name] = random.standard_normal(tensors[name].shape, dtype=np.float32) * np.float32(
                    0.2
                )
        return tensors

    return make


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """make_batch(vocab_size, rows=, seed=): rows of packed documents, padded to one length plus one; about
    a third of the tokens is not supervised."""

    def make(vocab_size: int, rows: Sequence[Sequence[int]] = ROWS, seed: int = 2) -> Batch:
        random = np.random.default_rng(seed)
        shape = (len(rows), max(map(sum, rows)) + 1)
        ids = random.integers(0, vocab_size, shape).astype(np.int32)
        labels = np.where(random.random(shape) < 0.7, ids, IGNORE_INDEX).astype(np.int32)
        positions = np.zeros(shape, np.int32)
        documents = np.full(shape, PADDING, np.int32)
        for row, lengths in enumerate(rows):
            start = 0
            for number, length in enumerate(lengths):
                positions[row, start : start + length] = np.arange(length)
                documents[row, start : start + length] = number
                start += length
            labels[row, start:] = IGNORE_INDEX
        return Batch(ids, labels, positions, documents)

    return make


@pytest.fixture(scope="session")
def check_gradient() -> Callable[..., None]:
    """check_gradient(f, inputs, gradients): f(*inputs) -> scalar, in float64; each gradient against central
    differences along three random directions (any wrong element shows in all of them)."""

    def check(
        f: Callable[..., float], inputs: Sequence[Array], gradients: Sequence[Array], limit: float = 1e-7
    ) -> None:
        random = np.random.default_rng(7)
        for place, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
            assert gradient.shape == x.shape and x.dtype == gradient.dtype == np.float64
            for _ in range(3):
                direction = random.standard_normal(x.shape)
                step = 1e-5
                moved = [
                    f(*inputs[:place], x + sign * step * direction, *inputs[place + 1 :]) for sign in (1, -1)
                ]
                numeric = (moved[0] - moved[1]) / (2 * step)
                size = float(np.linalg.norm(gradient)) * float(np.linalg.norm(direction)) / x.size**0.5
                assert abs(numeric - float(np.vdot(gradient, direction))) <= limit * max(size, 1e-3), place

    return check
