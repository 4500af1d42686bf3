"""A checkpoint loads whole and exact, or is refused by the names of what is wrong with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from nf4tui.bf16 import widen
from nf4tui.lora import PROJECTIONS
from nf4tui.models import load as load_module
from nf4tui.models.load import fingerprint, load_model
from nf4tui.models.qwen2 import Qwen2Config, module_name
from nf4tui.models.random_checkpoint import random_tensors, write_random_checkpoint
from nf4tui.models.shards import INDEX
from nf4tui.reference.nf4 import nf4_quantize

Refused = Callable[..., str]
Edit = Callable[..., None]
Tensors = dict[str, tuple[str, list[int], bytes]]
Rewrite = Callable[[Path, Callable[[Tensors], None]], None]
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


def rewrite_as(path: Path, tiny: Qwen2Config, dtype: str) -> None:
    path.write_bytes(
        safetensors.numpy.save({name: widen(bits).astype(dtype) for name, bits in random_tensors(tiny, 0)})
    )


def weight_map(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return found


# Whole checkpoints.


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_tensor_is_taken_in_its_own_precision(model: Path, tiny: Qwen2Config, dtype: str) -> None:
    if dtype != "bfloat16":
        rewrite_as(model / "model.safetensors", tiny, dtype)
    expected = {
        name: bits if dtype == "bfloat16" else widen(bits).astype(dtype)
        for name, bits in random_tensors(tiny, 0)
    }
    weights = load_model(model)
    assert weights.config == tiny and weights.lm_head is None and weights.head is weights.embedding
    assert np.array_equal(weights.embedding.data, expected[EMBEDDING])
    assert weights.embedding.data.dtype == expected[EMBEDDING].dtype
    assert np.array_equal(weights.final_norm, widen(expected[NORM]))
    for number, layer in enumerate(weights.layers):
        prefix = f"model.layers.{number}"
        assert np.array_equal(layer.attn_norm, widen(expected[f"{prefix}.input_layernorm.weight"]))
        assert np.array_equal(layer.mlp_norm, widen(expected[f"{prefix}.post_attention_layernorm.weight"]))
        for name in PROJECTIONS:
            packed, absmax = nf4_quantize(expected[f"{module_name(number, name)}.weight"])
            assert np.array_equal(layer.projections[name].packed, packed)
            assert np.array_equal(layer.projections[name].absmax, absmax)
            assert layer.projections[name].shape == tiny.projection_shape(name)
        assert set(layer.biases) == {"q_proj", "k_proj", "v_proj"}
        for name, bias in layer.biases.items():
            assert np.array_equal(bias, widen(expected[f"{module_name(number, name)}.bias"]))


def test_shards_load_as_one_file_does_and_the_fingerprint_sees_every_change(
    model: Path, sharded: Path, tmp_path: Path, tiny: Qwen2Config
) -> None:
    assert len(set(weight_map(sharded).values())) > 1
    weights = load_model(model)
    assert fingerprint(weights) == fingerprint(load_model(sharded))
    write_random_checkpoint(tmp_path / "other", tiny, seed=1)
    assert fingerprint(load_model(tmp_path / "other")) != fingerprint(weights)
    for change in (
        {"config": replace(tiny, rope_theta=1e4)},
        {"final_norm": weights.final_norm + 1},
        {"lm_head": weights.embedding},
    ):
        assert fingerprint(replace(weights, **change)) != fingerprint(weights)


def test_an_untied_head_is_loaded(untied_model: Path, untied: Qwen2Config) -> None:
    weights = load_model(untied_model)
    assert weights.lm_head is not None and weights.head is weights.lm_head
    assert np.array_equal(weights.lm_head.data, dict(random_tensors(untied, 0))["lm_head.weight"])


def test_the_buffers_of_older_transformers_are_passed_over(model: Path, rewrite: Rewrite) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(model / "model.safetensors", lambda tensors: tensors.update({name: ("F32", [4], bytes(16))}))
    load_model(model)


def test_a_block_of_zeros_is_legal(model: Path, rewrite: Rewrite) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(
        model / "model.safetensors", lambda tensors: tensors.update({name: ("BF16", [48, 32], bytes(3072))})
    )
    assert not load_model(model).layers[0].projections["up_proj"].absmax.any()


# Tensors that do not fit config.json.


def test_missing_and_unexpected_tensors_are_listed_the_first_ten(
    model: Path, refused: Refused, rewrite: Rewrite
) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    rewrite(path, lambda tensors: tensors.pop(NORM) and None)
    refused(load_model, model, says=(str(path), f"missing tensors: {NORM}"))
    rewrite(path, lambda tensors: [tensors.pop(name) for name in sorted(tensors)[:14]] and None)
    refused(load_model, model, says=("missing tensors: model.embed_tokens.weight, ", " and 5 more"))
    path.write_bytes(whole)
    extra: Tensors = {f"extra.{number:02}": ("F32", [1], bytes(4)) for number in range(12)}
    rewrite(path, lambda tensors: tensors.update(extra))
    message = refused(load_model, model, says=("config.json does not imply: extra.00, ", "and 2 more"))
    assert "extra.09" in message and "extra.10" not in message


def test_a_wrong_shape_and_a_wrong_dtype_are_refused_with_both_sides(
    model: Path, refused: Refused, rewrite: Rewrite
) -> None:
    path = model / "model.safetensors"
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
    rewrite(path, lambda tensors: tensors.update({q: ("BF16", [16, 64], tensors[q][2])}))
    rewrite(path, lambda tensors: tensors.update({k: ("I16", [16, 32], tensors[k][2])}))
    says = (f"{q} is [16, 64], config.json implies [32, 32]", f"{k} is I16, one of BF16, F16, F32 is needed")
    refused(load_model, model, says=(str(path), *says))


def test_another_config_than_the_tensors_is_refused(model: Path, refused: Refused, edit: Edit) -> None:
    edit(model / "config.json", vocab_size=41)
    refused(load_model, model, says=(f"{EMBEDDING} is [40, 32], config.json implies [41, 32]",))
    edit(model / "config.json", vocab_size=40, num_hidden_layers=1)
    refused(load_model, model, says=("does not imply: model.layers.1.", "and 2 more"))
    edit(model / "config.json", num_hidden_layers=3)
    refused(load_model, model, says=("missing tensors: model.layers.2.",))


@pytest.mark.parametrize("name", [EMBEDDING, NORM, "model.layers.1.mlp.down_proj.weight"])
@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        ("BF16", [0x7F80, 0xFF80, 0x7FC0]),  # Inf, -Inf, NaN
        ("F16", [0x7C00, 0xFC00, 0x7E00]),
    ],
)
def test_non_finite_weights_are_counted_by_tensor(
    model: Path, tiny: Qwen2Config, refused: Refused, rewrite: Rewrite, name: str, dtype: str, bad: list[int]
) -> None:
    path = model / "model.safetensors"
    if dtype == "F16":
        rewrite_as(path, tiny, "float16")

    def spoil(tensors: Tensors) -> None:
        values = np.frombuffer(tensors[name][2], np.uint16).copy()
        values[[0, 7, 31]] = bad
        tensors[name] = (dtype, tensors[name][1], values.tobytes())

    rewrite(path, spoil)
    refused(load_model, model, says=(str(path), f"tensor '{name}' has 3 non-finite values"))


def test_non_finite_values_are_counted_across_chunks(
    model: Path, refused: Refused, rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "_CHUNK", 100)
    values = np.zeros((40, 32), np.float32)
    values.reshape(-1)[[0, 99, 100, 1279]] = np.nan
    rewrite(
        model / "model.safetensors",
        lambda tensors: tensors.update({EMBEDDING: ("F32", [40, 32], values.tobytes())}),
    )
    refused(load_model, model, says=("4 non-finite values",))


# Tied heads.


def test_a_tied_checkpoint_may_repeat_its_embedding_but_not_differ(
    model: Path, refused: Refused, rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model / "model.safetensors"
    monkeypatch.setattr(load_module, "_CHUNK", 7 * 32)  # several parts, the last one shorter
    rewrite(path, lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING]}))
    assert load_model(model).lm_head is None

    def differ_at(place: int) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            dtype, shape, data = tensors[EMBEDDING]
            changed = bytearray(data)
            changed[place] ^= 1
            tensors["lm_head.weight"] = (dtype, shape, bytes(changed))

        return change

    says = (str(path), "tie_word_embeddings true", "lm_head.weight differs from model.embed_tokens.weight")
    for place in (0, 1000, -2):
        rewrite(path, differ_at(place))
        refused(load_model, model, says=says)
    rewrite(
        path, lambda tensors: tensors.update({"lm_head.weight": ("BF16", [20, 64], tensors[EMBEDDING][2])})
    )
    refused(load_model, model, says=says)


def test_an_untied_checkpoint_without_a_head_is_refused_with_the_way_out(
    model: Path, refused: Refused, edit: Edit
) -> None:
    edit(model / "config.json", tie_word_embeddings=False)
    refused(load_model, model, says=("missing tensors: lm_head.weight (config.json says", "set it to true"))
