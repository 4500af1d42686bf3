"""A base and its adapter as one model:  W' = W + scaling * B A,  formed in float32, stored as bfloat16 or NF4.

W is the NF4 matrix dequantised, which is what was trained with, or the stored original, from which it differs
by about 9 %. Projections without an adapter are taken from the same side. Everything else keeps its value;
tied embeddings stay tied.

Memory: the NF4 model, and one matrix at a time beside it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, widen
from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig, projection_path
from nf4tui.models.double_quantize import QUANTIZATION_CONFIG, nf4_specs, nf4_tensors
from nf4tui.models.qwen2 import Qwen2Config, projection_weights, tensor_schema
from nf4tui.models.safetensors_writer import TensorSpec, write_safetensors
from nf4tui.models.shards import INDEX, SINGLE, Checkpoint
from nf4tui.models.weights import ModelWeights, Nf4Tensor
from nf4tui.reference.nf4 import nf4_dequantize, nf4_quantize
from nf4tui.small_files import read_json_object

SHARD_BYTES = 5 * 10**9  # transformers' default
_CHUNK = 2**20
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_NAME = "model-{:05d}-of-{:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Merge:
    """What is merged, and how. original: into the stored matrices instead of the NF4 ones, which `checkpoint`
    must then hold unquantised."""

    checkpoint: Checkpoint
    weights: ModelWeights
    lora: LoraConfig
    adapters: Tensors
    original: bool = False

    def matrix(self, layer: int, projection: str, weight: str) -> NDArray[np.float32]:
        """The merged projection [out, in]; `weight`: its name in the checkpoint."""
        if self.original:
            merged = widen(self.checkpoint.read(weight))
        else:
            tensor = self.weights.layers[layer].nf4(projection)
            merged = nf4_dequantize(tensor.packed, tensor.absmax, tensor.shape)
        path = projection_path(layer, projection)
        if f"{path}.lora_A" in self.adapters:
            delta = self.adapters[f"{path}.lora_B"] @ self.adapters[f"{path}.lora_A"]
            delta *= np.float32(self.lora.scaling_of(path))
            merged += delta
        return merged

    def bf16_matrix(self, layer: int, projection: str, weight: str) -> NDArray[np.uint16]:
        """The merged projection as bfloat16 bits. Raises InputError where it is too large for them."""
        return _bf16(weight, self.matrix(layer, projection, weight), "the adapter is damaged")

    def other(self, name: str) -> NDArray[np.uint16]:
        """A tensor that no adapter changes, as bfloat16 bits: as stored, or rounded once. Raises InputError."""
        held = {_EMBEDDING: self.weights.embedding, _HEAD: self.weights.head}
        data = held[name].data if name in held else self.checkpoint.read(name)
        return data if data.dtype == np.uint16 else _bf16(name, data, "bfloat16 does not hold them")


def _bf16(name: str, values: NDArray[Any], why: str) -> NDArray[np.uint16]:
    """float32 or float16 values as bfloat16 bits, in chunks, so that only the result takes memory."""
    bits = np.empty(values.size, np.uint16)
    flat, bad = values.reshape(-1), 0
    for start in range(0, flat.size, _CHUNK):
        part = bf16_from_float32(widen(flat[start : start + _CHUNK]))
        bad += int(np.count_nonzero((part & 0x7F80) == 0x7F80))  # an exponent of all ones is Inf or NaN
        bits[start : start + _CHUNK] = part
    if bad:
        raise InputError(f"{name}: {bad} values are not finite in bfloat16; {why}")
    return bits.reshape(values.shape)


def has_originals(merge: Merge) -> bool:
    """Whether the checkpoint holds its projections unquantised."""
    names = (weight for _, _, weight in projection_weights(merge.weights.config))
    return all(merge.checkpoint.info(weight).dtype != "U8" for weight in names)


def check_originals(merge: Merge) -> None:
    """Raises InputError if the stored projections are quantised: their originals are not there."""
    if not has_originals(merge):
        raise InputError(
            f"{merge.checkpoint.where}: --into original: the base is stored in NF4, and its originals are not"
            " there; use --into dequantised, or the original checkpoint as --model"
        )


def output_bytes(config: Qwen2Config, *, quantise: bool) -> int:
    """Bytes of all tensors that write_merged writes."""
    return sum(
        spec.nbytes for specs in _groups(config, quantise=quantise).values() for spec in specs.values()
    )


def write_merged(
    folder: Path, merge: Merge, *, quantise: bool = False, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes config.json and the weights into an empty folder, in shards of at most shard_bytes (or one
    matrix). Raises InputError, OSError."""
    shards: list[list[str]] = [[]]
    held = 0
    groups = _groups(merge.weights.config, quantise=quantise)
    for name, specs in groups.items():
        size = sum(spec.nbytes for spec in specs.values())
        if shards[-1] and held + size > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else _NAME.format(number, len(shards))
        specs = {tensor: spec for name in names for tensor, spec in groups[name].items()}
        weight_map |= dict.fromkeys(specs, file)
        write_safetensors(folder / file, specs, _arrays(merge, names, quantise=quantise))
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": output_bytes(merge.weights.config, quantise=quantise)},
            "weight_map": weight_map,
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    config = merged_config(merge.checkpoint.where.parent, quantise=quantise)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def merged_config(model_dir: Path, *, quantise: bool) -> dict[str, Any]:
    """The base's config.json with the merged model's own dtype and quantisation."""
    config = read_json_object(model_dir / "config.json")
    config.pop("quantization_config", None)
    # transformers 4 reads torch_dtype, 5 dtype first.
    config |= {"torch_dtype": "bfloat16"} | ({"dtype": "bfloat16"} if "dtype" in config else {})
    if quantise:
        config["quantization_config"] = QUANTIZATION_CONFIG
    return config


def _groups(config: Qwen2Config, *, quantise: bool) -> dict[str, dict[str, TensorSpec]]:
    """Of every tensor of the schema, what is stored for it: itself, or what holds it in NF4."""
    matrices = {name for _, _, name in projection_weights(config)}
    groups = {}
    for name, shape in tensor_schema(config).items():
        if quantise and name in matrices:
            groups[name] = nf4_specs(name, (shape[0], shape[1]))
        else:
            groups[name] = {name: TensorSpec("BF16", shape)}
    return groups


def _arrays(merge: Merge, names: list[str], *, quantise: bool) -> Iterator[NDArray[Any]]:
    """The arrays of the groups `names`, one at a time."""
    places = {name: (layer, kind) for layer, kind, name in projection_weights(merge.weights.config)}
    for name in names:
        if name not in places:
            yield merge.other(name)
        elif quantise:
            matrix = merge.matrix(*places[name], name)
            packed, absmax = nf4_quantize(matrix)
            if not np.isfinite(absmax).all():
                raise InputError(f"{name}: its merged values are not finite; the adapter is damaged")
            yield from nf4_tensors(Nf4Tensor(packed, absmax, (matrix.shape[0], matrix.shape[1])))
        else:
            yield merge.bf16_matrix(*places[name], name)
