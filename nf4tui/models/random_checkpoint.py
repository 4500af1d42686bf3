"""A checkpoint of a given shape with random weights: for benchmarks and tests, when only shapes matter.

Scales keep activations like a trained model's: matrices N(0, 0.02) as transformers initialises them,
norms 1 +- 0.1, biases N(0, 0.5), since a fault in a bias must show.

Memory: one shard at a time.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32
from nf4tui.models.qwen2 import Qwen2Config, tensor_schema
from nf4tui.models.safetensors_writer import TensorSpec, write_safetensors
from nf4tui.models.shards import INDEX, SINGLE


def _qwen25(vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, tied: bool) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=32768,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
    )


# The config.json of Qwen2.5-0.5B, -1.5B and -7B.
SHAPES = {
    "0.5b": _qwen25(151936, 896, 4864, 24, 14, 2, True),
    "1.5b": _qwen25(151936, 1536, 8960, 28, 12, 2, True),
    "7b": _qwen25(152064, 3584, 18944, 28, 28, 4, False),
}


def random_tensors(config: Qwen2Config, seed: int) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Every tensor of the schema as bfloat16 bits; each is a function of (seed, its place) alone."""
    for place, (name, shape) in enumerate(tensor_schema(config).items()):
        generator = np.random.Generator(np.random.Philox(key=[seed, place]))
        values = generator.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        else:
            values *= np.float32(0.5 if name.endswith(".bias") else 0.02)
        yield name, bf16_from_float32(values.astype(np.float32))


def write_random_checkpoint(
    directory: Path, config: Qwen2Config, *, seed: int = 0, shard_bytes: int = 2**30
) -> None:
    """Writes config.json and bf16 safetensors, sharded above `shard_bytes`, into `directory`, which is
    made and must not hold a checkpoint yet."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = asdict(config) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }
    with (directory / "config.json").open("x", encoding="utf-8") as file:
        json.dump(raw, file, indent=2, sort_keys=True)
    shards: list[list[str]] = []
    shard: dict[str, NDArray[np.uint16]] = {}
    for name, bits in random_tensors(config, seed):
        if shard and sum(part.nbytes for part in shard.values()) + bits.nbytes > shard_bytes:
            write_tensors(directory / _shard_name(len(shards)), shard)
            shards.append(list(shard))
            shard = {}
        shard[name] = bits
    if not shards:
        write_tensors(directory / SINGLE, shard)
        return
    write_tensors(directory / _shard_name(len(shards)), shard)
    shards.append(list(shard))
    weight_map = {name: _shard_name(number) for number, names in enumerate(shards) for name in names}
    with (directory / INDEX).open("x", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file, indent=2)


def _shard_name(number: int) -> str:
    return f"model-{number + 1:05d}.safetensors"


def write_tensors(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """Writes a new safetensors file of bfloat16 tensors (as uint16 bits)."""
    specs = {name: TensorSpec("BF16", bits.shape) for name, bits in tensors.items()}
    write_safetensors(path, specs, tensors.values())
