"""Adapters as PEFT and Unsloth leave them (tests/golden/adapters), whole and changed in one place: read as PEFT
reads them, or refused by what they are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, round_to_bf16
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import check_base, read_adapter
from nf4tui.models.qwen2 import Qwen2Config, read_config

Refused = Callable[..., str]
Edit = Callable[..., None]
A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture
def config(golden: Path) -> Qwen2Config:
    return read_config(golden / "tied" / "base")


@pytest.fixture
def adapter(golden: Path, tmp_path: Path) -> Path:
    """All projections, by Unsloth's expression, down_proj with a rank of its own."""
    return Path(shutil.copytree(golden / "adapters" / "unsloth-regex", tmp_path / "adapter"))


@pytest.fixture
def lora(adapter: Path, config: Qwen2Config) -> LoraConfig:
    return read_adapter(adapter, config)[0]


def change_tensors(adapter: Path, change: Callable[[dict[str, NDArray[Any]]], object]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = safetensors.numpy.load(path.read_bytes())
    change(tensors)
    path.write_bytes(safetensors.numpy.save(tensors))


def test_what_unsloth_adds_to_the_config_is_read(
    adapter: Path, config: Qwen2Config, lora: LoraConfig, edit: Edit
) -> None:
    mapping = {
        "base_model_class": "Qwen2ForCausalLM",
        "parent_library": "transformers.models.qwen2.modeling_qwen2",
        "unsloth_fixed": True,
    }
    base = "unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit"
    edit(adapter / "adapter_config.json", auto_mapping=mapping, base_model_name_or_path=base)
    assert read_adapter(adapter, config)[0] == lora
    check_base(adapter, "ab" * 32)  # it says nothing of the base's hash


def test_tensors_under_the_names_that_they_have_in_memory_are_read(
    adapter: Path, config: Qwen2Config, lora: LoraConfig
) -> None:
    before = read_adapter(adapter, config)[1]

    def rename(tensors: dict[str, NDArray[Any]]) -> None:
        for name in list(tensors):
            tensors[name.replace(".weight", ".default.weight")] = tensors.pop(name)

    change_tensors(adapter, rename)
    found, after = read_adapter(adapter, config)
    assert found == lora and after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_tensors_in_bfloat16_are_widened(
    adapter: Path,
    config: Qwen2Config,
    raw_tensors: Callable[..., Any],
    rewrite: Callable[..., None],
) -> None:
    before = read_adapter(adapter, config)[1]

    def narrow(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        for name, (_, shape, data) in tensors.items():
            values = bf16_from_float32(np.frombuffer(data, np.float32))
            tensors[name] = ("BF16", shape, values.tobytes())

    rewrite(adapter / "adapter_model.safetensors", narrow)
    assert {dtype for dtype, _, _ in raw_tensors(adapter / "adapter_model.safetensors").values()} == {"BF16"}
    after = read_adapter(adapter, config)[1]
    assert all(np.array_equal(after[name], round_to_bf16(before[name])) for name in before)


def test_what_a_later_peft_adds_is_passed_over_while_it_is_off(
    adapter: Path, config: Qwen2Config, lora: LoraConfig, edit: Edit
) -> None:
    off = {"use_x": False, "x_config": None, "x_list": [], "x_map": {}, "x_name": "", "x_size": 0}
    edit(adapter / "adapter_config.json", **off)
    assert read_adapter(adapter, config)[0] == lora


def test_what_an_earlier_peft_left_out_is_its_default(
    adapter: Path, config: Qwen2Config, lora: LoraConfig
) -> None:
    path = adapter / "adapter_config.json"
    needed = {"peft_type", "r", "lora_alpha", "target_modules", "rank_pattern"}
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k in needed}))
    assert read_adapter(adapter, config)[0] == lora


def test_targets_that_the_model_has_not_are_passed_over_as_in_peft(
    adapter: Path, config: Qwen2Config, lora: LoraConfig, edit: Edit, refused: Refused
) -> None:
    path = adapter / "adapter_config.json"
    seven = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    edit(path, target_modules=[*seven, "c_attn", "w1"])
    assert read_adapter(adapter, config)[0] == lora
    edit(path, target_modules=[*seven, "lm_head"], exclude_modules=["lm_head"])
    assert read_adapter(adapter, config)[0] == lora
    edit(path, target_modules=[*seven[:6], "down"], exclude_modules=None)
    refused(read_adapter, adapter, config, says=("does not imply: layers.0.mlp.down_proj.lora_A",))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "adapters on embeddings are not supported;"),
        ("base_model.model.model.embed_tokens.weight", "trained embeddings are not supported;"),
        ("base_model.model.lm_head.base_layer.weight", "a trained head is not supported;"),
        (A0.replace("lora_A.weight", "lora_magnitude_vector.weight"), "DoRA is not supported;"),
        ("base_model.model.score.modules_to_save.weight", "fully trained modules are not supported;"),
        (A0.replace("lora_A.weight", "base_layer.bias"), "trained biases are not supported;"),
    ],
)
def test_tensors_of_other_methods_are_refused_by_what_they_are(
    adapter: Path, config: Qwen2Config, refused: Refused, name: str, says: str
) -> None:
    change_tensors(adapter, lambda tensors: tensors.update({name: np.zeros(3, np.float32)}))
    refused(read_adapter, adapter, config, says=(name, says, "train a plain LoRA adapter, or merge"))


def test_ranks_that_the_patterns_do_not_give_are_refused_with_the_rank(
    adapter: Path, config: Qwen2Config, edit: Edit, refused: Refused
) -> None:
    edit(adapter / "adapter_config.json", rank_pattern={"down_proj": 500})
    says = ("layers.0.mlp.down_proj.lora_A is [1, 192], the model and rank 500 need [500, 192]",)
    refused(read_adapter, adapter, config, says=says)
