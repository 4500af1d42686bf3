"""A Hugging Face model directory to ModelWeights, tensor by tensor.

Memory: beside the quantised model itself only one stored tensor and the quantiser's small chunks exist
at a time, so the host's memory grows by the quantised model plus the largest tensor.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import widen
from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS
from nf4tui.models.bitsandbytes import check_quantization_config, nf4_tensor_names, read_nf4_tensor
from nf4tui.models.qwen2 import (
    BIASED_PROJECTIONS,
    Qwen2Config,
    module_name,
    projection_weights,
    read_config,
    tensor_schema,
)
from nf4tui.models.shards import Checkpoint, first_ten, open_checkpoint
from nf4tui.models.weights import DenseTensor, LayerWeights, ModelWeights, Nf4Tensor
from nf4tui.reference.nf4 import nf4_quantize
from nf4tui.small_files import read_json_object

Quantizer = Callable[[NDArray[Any]], tuple[NDArray[np.uint8], NDArray[np.float32]]]

_FLOATS = ("BF16", "F16", "F32")
_CHUNK = 2**22
# Buffers that older transformers saved; they follow from the config.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def load_model(directory: Path, *, quantize: Quantizer = nf4_quantize) -> ModelWeights:
    """Loads bf16, fp16, fp32 or bitsandbytes-NF4 safetensors, single or sharded.

    `quantize` turns a matrix in its stored dtype (bfloat16 as uint16 bits) into (packed, absmax).
    Raises InputError naming the file and the tensors that are missing, unexpected, of a wrong shape or
    dtype, or not finite.
    """
    config = read_config(directory)
    quantization = read_json_object(directory / "config.json").get("quantization_config")
    if quantization is not None:
        check_quantization_config(directory / "config.json", quantization)
    checkpoint = open_checkpoint(directory)
    quantized = quantization is not None
    _check_names(checkpoint, config, quantized)

    def projection(name: str, shape: tuple[int, int]) -> Nf4Tensor:
        if quantized:
            return read_nf4_tensor(
                checkpoint.path(name), name, shape, checkpoint.read, checkpoint.__contains__
            )
        return Nf4Tensor(*quantize(_read_finite(checkpoint, name)), shape)

    def vector(name: str) -> NDArray[np.float32]:
        return widen(_read_finite(checkpoint, name))

    layers = []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        layers.append(
            LayerWeights(
                attn_norm=vector(f"{prefix}.input_layernorm.weight"),
                mlp_norm=vector(f"{prefix}.post_attention_layernorm.weight"),
                projections={
                    name: projection(f"{module_name(layer, name)}.weight", config.projection_shape(name))
                    for name in PROJECTIONS
                },
                biases={name: vector(f"{module_name(layer, name)}.bias") for name in BIASED_PROJECTIONS},
            )
        )
    embedding = DenseTensor(_read_finite(checkpoint, "model.embed_tokens.weight"))
    lm_head = None
    if not config.tie_word_embeddings:
        lm_head = DenseTensor(_read_finite(checkpoint, "lm_head.weight"))
    elif "lm_head.weight" in checkpoint:
        _check_same_head(checkpoint, embedding)
    return ModelWeights(config, embedding, tuple(layers), vector("model.norm.weight"), lm_head)


def fingerprint(weights: ModelWeights) -> str:
    """SHA-256 over the config and every parameter as held: equal exactly for the same quantised base."""
    digest = hashlib.sha256(json.dumps(asdict(weights.config), sort_keys=True).encode())
    digest.update(np.ascontiguousarray(weights.embedding.data).data)
    for layer in weights.layers:
        digest.update(layer.attn_norm.data)
        digest.update(layer.mlp_norm.data)
        for name in PROJECTIONS:
            digest.update(layer.nf4(name).packed.data)
            digest.update(layer.nf4(name).absmax.data)
        for name in BIASED_PROJECTIONS:
            digest.update(layer.biases[name].data)
    digest.update(weights.final_norm.data)
    if weights.lm_head is not None:
        digest.update(np.ascontiguousarray(weights.lm_head.data).data)
    return digest.hexdigest()


def _check_names(checkpoint: Checkpoint, config: Qwen2Config, quantized: bool) -> None:
    """Every expected tensor is there with its shape and dtype, and nothing else is."""
    schema = tensor_schema(config)
    expected = set(schema)
    if quantized:
        matrices = {name for _, _, name in projection_weights(config)}
        _check_all_quantized(checkpoint, matrices)
        for name in matrices:
            expected.remove(name)
            del schema[name]
            expected.update(nf4_tensor_names(name, checkpoint.__contains__))
    missing = sorted(expected - set(checkpoint.files))
    if missing:
        hint = ""
        if missing == ["lm_head.weight"]:
            hint = " (config.json says tie_word_embeddings false; set it to true if the head is tied)"
        raise InputError(f"{checkpoint.where}: missing tensors: {first_ten(missing)}{hint}")
    allowed = expected | ({"lm_head.weight"} if config.tie_word_embeddings else set())
    extra = sorted(name for name in set(checkpoint.files) - allowed if not _DERIVED.fullmatch(name))
    if extra:
        raise InputError(f"{checkpoint.where}: tensors that config.json does not imply: {first_ten(extra)}")
    wrong = []
    for name, shape in schema.items():
        info = checkpoint.info(name)
        if info.shape != shape:
            wrong.append(f"{name} is {list(info.shape)}, config.json implies {list(shape)}")
        elif info.dtype not in _FLOATS:
            wrong.append(f"{name} is {info.dtype}, one of {', '.join(_FLOATS)} is needed")
    if wrong:
        raise InputError(f"{checkpoint.where}: {first_ten(wrong)}")


def _check_all_quantized(checkpoint: Checkpoint, matrices: set[str]) -> None:
    fp4 = sorted(name for name in matrices if f"{name}.quant_state.bitsandbytes__fp4" in checkpoint)
    if fp4:
        raise InputError(f"{checkpoint.where}: quantised to FP4, not NF4: {first_ten(fp4)}")
    plain = sorted(name for name in matrices if name in checkpoint and checkpoint.info(name).dtype in _FLOATS)
    if plain:
        raise InputError(
            f"{checkpoint.where}: a 4-bit checkpoint with unquantised projections is not supported; "
            f"use the original checkpoint: {first_ten(plain)}"
        )


def _read_finite(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    data = checkpoint.read(name)
    flat, bad = data.reshape(-1), 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        # bfloat16 bits: an exponent of all ones is Inf or NaN.
        finite = (part & 0x7F80) != 0x7F80 if part.dtype == np.uint16 else np.isfinite(part)
        bad += part.size - int(np.count_nonzero(finite))
    if bad:
        raise InputError(
            f"{checkpoint.path(name)}: tensor {name!r} has {bad} non-finite values; the checkpoint is damaged"
        )
    return data


def _check_same_head(checkpoint: Checkpoint, embedding: DenseTensor) -> None:
    """A tied checkpoint may repeat the embedding as lm_head.weight, as long as it is the same."""
    info, rows = checkpoint.info("lm_head.weight"), embedding.data.shape[0]
    same = info.shape == embedding.data.shape
    step = max(1, _CHUNK // embedding.data.shape[1])
    for start in range(0, rows if same else 0, step):
        part = slice(start, min(start + step, rows))
        head = DenseTensor(checkpoint.read("lm_head.weight", part))
        same = same and np.array_equal(head.float32(), embedding.float32(part))
    if not same:
        raise InputError(
            f"{checkpoint.path('lm_head.weight')}: config.json says tie_word_embeddings true, but lm_head.weight "
            "differs from model.embed_tokens.weight; set tie_word_embeddings to false to use it"
        )
