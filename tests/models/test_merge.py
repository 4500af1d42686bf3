"""Merged models: every value by a straightforward computation, in every layout, read back by the loader."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, widen
from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig, ModuleLora, projection_path
from nf4tui.models.adapter import tensor_shapes
from nf4tui.models.dense import merged_weights, stored_weights
from nf4tui.models.load import load_model
from nf4tui.models.merge import Merge, check_originals, merged_config, output_bytes, write_merged
from nf4tui.models.qwen2 import Qwen2Config, projection_weights, read_config, tensor_schema
from nf4tui.models.random_checkpoint import write_random_checkpoint
from nf4tui.models.shards import open_checkpoint
from nf4tui.models.weights import Nf4Tensor
from nf4tui.reference.nf4 import nf4_dequantize, nf4_quantize

UNIFORM = LoraConfig(rank=3, alpha=5.0, rslora=True, targets=("q_proj", "v_proj", "down_proj"))
PATTERNED = LoraConfig(
    rank=4,
    alpha=8.0,
    targets=("k_proj", "up_proj"),
    modules=(ModuleLora("layers.0.attn.k_proj", 2, 3.0), ModuleLora("layers.1.mlp.up_proj", 4, 8.0)),
)


def adapters_of(config: Qwen2Config, lora: LoraConfig) -> Tensors:
    random = np.random.default_rng(1)
    return {
        name: (0.1 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in tensor_shapes(config, lora).items()
    }


@pytest.fixture
def base(tmp_path: Path, tiny: Qwen2Config) -> Path:
    write_random_checkpoint(tmp_path / "base", tiny)
    return tmp_path / "base"


def merge_of(base: Path, lora: LoraConfig = UNIFORM, *, original: bool = False) -> Merge:
    weights = load_model(base)
    return Merge(open_checkpoint(base), weights, lora, adapters_of(weights.config, lora), original)


def expected(merge: Merge) -> dict[str, NDArray[np.float32]]:
    """Every merged projection in float32, by its name."""
    found = {}
    for layer, projection, name in projection_weights(merge.weights.config):
        stored = widen(merge.checkpoint.read(name))
        matrix = stored if merge.original else nf4_dequantize(*nf4_quantize(stored), stored.shape)
        path = projection_path(layer, projection)
        if f"{path}.lora_A" in merge.adapters:
            b, a = merge.adapters[f"{path}.lora_B"], merge.adapters[f"{path}.lora_A"]
            matrix = matrix + (b @ a) * np.float32(merge.lora.scaling_of(path))
        found[name] = matrix
    return found


@pytest.mark.parametrize("lora", [UNIFORM, PATTERNED], ids=["uniform", "patterned"])
@pytest.mark.parametrize("original", [False, True], ids=["dequantised", "original"])
def test_every_value_is_the_merged_one_rounded_once(
    tmp_path: Path, base: Path, lora: LoraConfig, original: bool
) -> None:
    merge = merge_of(base, lora, original=original)
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge)
    written = open_checkpoint(tmp_path / "out")
    matrices = expected(merge)
    assert set(written.files) == set(tensor_schema(merge.weights.config))
    for name in written.files:
        assert written.info(name).dtype == "BF16"
        right = bf16_from_float32(matrices[name]) if name in matrices else merge.checkpoint.read(name)
        np.testing.assert_array_equal(written.read(name), right, err_msg=name)
    changed = sum(not np.array_equal(matrices[name], widen(merge.checkpoint.read(name))) for name in matrices)
    adapted = len(list(lora.adapted(2)))
    assert changed == (adapted if original else len(matrices))
    load_model(tmp_path / "out")


def test_small_shards_hold_the_same_tensors_and_an_index(tmp_path: Path, base: Path) -> None:
    merge = merge_of(base)
    for name, size in (("whole", 2**40), ("shards", 10_000)):
        (tmp_path / name).mkdir()
        write_merged(tmp_path / name, merge, shard_bytes=size)
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    whole, parts = open_checkpoint(tmp_path / "whole"), open_checkpoint(tmp_path / "shards")
    for name in whole.files:
        np.testing.assert_array_equal(whole.read(name), parts.read(name))
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    size = sum(whole.info(name).nbytes for name in whole.files)
    assert index["metadata"]["total_size"] == size == output_bytes(merge.weights.config, quantise=False)
    load_model(tmp_path / "shards")


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_stays_tied_and_an_untied_one_stays(
    tmp_path: Path, make_config: Callable[..., Qwen2Config], tied: bool
) -> None:
    config = make_config(tie_word_embeddings=tied)
    write_random_checkpoint(tmp_path / "base", config)
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge_of(tmp_path / "base"))
    assert ("lm_head.weight" in open_checkpoint(tmp_path / "out")) == (not tied)
    assert read_config(tmp_path / "out") == config


def test_what_repeats_or_follows_from_other_tensors_is_dropped(tmp_path: Path, base: Path) -> None:
    stored = open_checkpoint(base)
    tensors = {name: widen(stored.read(name)) for name in stored.files}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    (base / "model.safetensors").write_bytes(safetensors.numpy.save(tensors))
    merge = merge_of(base)
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge)
    assert set(open_checkpoint(tmp_path / "out").files) == set(tensor_schema(merge.weights.config))
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"torch_dtype": "float16"}, {"torch_dtype": "bfloat16"}),
        ({"dtype": "float32"}, {"dtype": "bfloat16", "torch_dtype": "bfloat16"}),
        ({"dtype": "float32", "torch_dtype": "float32"}, {"dtype": "bfloat16", "torch_dtype": "bfloat16"}),
    ],
)
def test_the_dtype_is_said_wherever_transformers_looks_for_it(
    tmp_path: Path, fields: dict[str, str], wanted: dict[str, str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields | {"hidden_size": 32}))
    assert merged_config(tmp_path, quantise=False) == wanted | {"hidden_size": 32}


def test_a_value_that_bfloat16_does_not_hold_is_refused_by_name(tmp_path: Path, base: Path) -> None:
    stored = open_checkpoint(base)
    tensors = {name: widen(stored.read(name)) for name in stored.files}
    tensors["model.norm.weight"][3] = np.finfo(np.float32).max
    (base / "model.safetensors").write_bytes(safetensors.numpy.save(tensors))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"model\.norm\.weight: 1 values are not finite in bfloat16"):
        write_merged(tmp_path / "out", merge_of(base))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_other_dtypes_are_rounded_to_bfloat16_once(tmp_path: Path, base: Path, dtype: Any) -> None:
    stored = open_checkpoint(base)
    tensors = {name: widen(stored.read(name)).astype(dtype) * dtype(1.001) for name in stored.files}
    (base / "model.safetensors").write_bytes(safetensors.numpy.save(tensors))
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge_of(base, original=True))
    written = open_checkpoint(tmp_path / "out")
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias"):
        np.testing.assert_array_equal(written.read(name), bf16_from_float32(widen(tensors[name])))


def test_quantised_it_is_the_layout_that_the_loader_reads(tmp_path: Path, base: Path) -> None:
    merge = merge_of(base)
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge, quantise=True)
    weights = load_model(tmp_path / "out")
    for layer, projection, name in projection_weights(weights.config):
        packed, absmax = nf4_quantize(expected(merge)[name])
        found = weights.layers[layer].nf4(projection)
        np.testing.assert_array_equal(found.packed, packed)
        spread = np.abs(absmax - absmax.mean()).max()
        assert np.abs(found.absmax - absmax).max() <= 0.01 * spread  # half a step of the 8-bit map
    written = open_checkpoint(tmp_path / "out")
    size = sum(written.info(name).nbytes for name in written.files)
    assert size == output_bytes(weights.config, quantise=True)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["bnb_4bit_use_double_quant"] is True


def test_a_base_stored_in_nf4_has_no_originals(tmp_path: Path, base: Path) -> None:
    (tmp_path / "nf4").mkdir()
    write_merged(tmp_path / "nf4", merge_of(base), quantise=True)
    again = merge_of(tmp_path / "nf4")
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", again)
    load_model(tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    with pytest.raises(InputError, match="--into original: the base is stored in NF4"):
        check_originals(replace(again, original=True))


def test_values_too_large_for_bfloat16_are_refused_by_name(tmp_path: Path, base: Path) -> None:
    merge = merge_of(base)
    merge.adapters["layers.1.mlp.down_proj.lora_B"][0, 0] = np.float32(3e38)
    merge.adapters["layers.1.mlp.down_proj.lora_A"][0, 0] = np.float32(3e38)
    for quantise in (False, True):
        folder = tmp_path / str(quantise)
        folder.mkdir()
        with (
            np.errstate(over="ignore"),
            pytest.raises(InputError, match=r"layers\.1\.mlp\.down_proj\.weight: .*not finite"),
        ):
            write_merged(folder, merge, quantise=quantise)


def test_dense_weights_are_what_is_written(tmp_path: Path, base: Path) -> None:
    merge = merge_of(base)
    (tmp_path / "out").mkdir()
    write_merged(tmp_path / "out", merge)
    stored = stored_weights(open_checkpoint(tmp_path / "out"), merge.weights.config)
    made = merged_weights(merge)
    for a, b in zip(stored.layers, made.layers, strict=True):
        for name in a.projections:
            x, y = a.projections[name], b.projections[name]
            assert not isinstance(x, Nf4Tensor) and not isinstance(y, Nf4Tensor)
            np.testing.assert_array_equal(x.float32(), y.float32())
