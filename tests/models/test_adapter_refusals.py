"""An adapter that is not wholly understood is refused by field or tensor."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, round_to_bf16
from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import peft_name, read_adapter, tensor_shapes, write_adapter
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_tensors

Refused = Callable[..., str]
Edit = Callable[..., None]
LORA = LoraConfig(rank=3, alpha=7.5, rslora=True, targets=("q_proj", "v_proj", "down_proj"), dropout=0.05)
A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
FIELDS = {
    "alpha_pattern",
    "base_model_name_or_path",
    "bias",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
}


def tensors_of(config: Qwen2Config, lora: LoraConfig = LORA) -> Tensors:
    generator = np.random.default_rng(0)
    return {
        name: generator.standard_normal(shape, dtype=np.float32)
        for name, shape in tensor_shapes(config, lora).items()
    }


@pytest.fixture
def adapter(tmp_path: Path, tiny: Qwen2Config) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    write_adapter(directory, tiny, LORA, tensors_of(tiny), base_model="some/base")
    return directory


def change_tensors(directory: Path, change: Callable[[dict[str, NDArray[Any]]], object]) -> Path:
    path = directory / "adapter_model.safetensors"
    tensors = safetensors.numpy.load(path.read_bytes())
    change(tensors)
    path.write_bytes(safetensors.numpy.save(tensors))
    return path


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA': only LORA"),
        ({"use_dora": True}, "use_dora is True: not supported"),
        ({"bias": "all"}, "bias is 'all': not supported"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is 'pissa_niter_16': not supported"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
        ({"r": "3"}, "r is '3': must be a positive whole number"),
        ({"r": True}, "r is True"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": None}, "lora_alpha is None: must be a positive number"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0: must be at least 0 and below 1"),
        ({"lora_dropout": "0"}, "lora_dropout is '0'"),
        ({"use_rslora": 1}, "use_rslora is 1: must be true or false"),
        ({"target_modules": []}, "target_modules is []: must name some of q_proj"),
        ({"target_modules": None}, "target_modules is None"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules is ['q_proj', 'lm_head']"),
        ({"target_modules": [["q_proj"]]}, "target_modules is [['q_proj']]"),
        ({"target_modules": "("}, "not a regular expression (missing ), unterminated subpattern"),
        ({"target_modules": "a{99999999999999999999}"}, "not a regular expression (the repetition"),
        ({"target_modules": ["score"]}, "target_modules is ['score']: matches none of q_proj, k_proj"),
        (
            {"target_modules": ["q_proj", "embed_tokens"]},
            "adapters on model.embed_tokens are not supported; train",
        ),
        (
            {"target_modules": r".*(proj|lm_head|tokens)"},
            "on model.embed_tokens and lm_head are not supported",
        ),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora is {'nblocks': 2}: not supported: BD-LoRA"),
        ({"kasa_config": {"beta": 1}}, "kasa_config is {'beta': 1}: an unknown setting"),
        ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "matches none of q_proj"),
        (
            {"target_modules": "q_proj|v_proj", "layers_to_transform": [0]},
            "goes with a list of target_modules",
        ),
        ({"layers_to_transform": ["0"]}, "layers_to_transform is ['0']: must be a list of layer numbers"),
        ({"layers_to_transform": [-1]}, "layers_to_transform is [-1]"),
        ({"rank_pattern": {"q_proj": 0}}, "'q_proj' must be a positive whole number"),
        ({"rank_pattern": {"q_proj": 4.0}}, "'q_proj' must be a positive whole number"),
        ({"rank_pattern": [4]}, "rank_pattern is [4]: must map patterns to numbers"),
        ({"rank_pattern": {"(": 4}}, "not a regular expression"),
        ({"alpha_pattern": {"q_proj": "4"}}, "'q_proj' must be a positive number"),
        ({"exclude_modules": [1]}, "exclude_modules is [1]: must be a list of names"),
        ({"arrow_config": {"top_k": 2}}, "arrow_config"),
        (
            {"use_new_thing": True},
            "use_new_thing is True: an unknown setting, which may change what the adapter computes; train",
        ),
        (
            {"target_modules": "q_proj"},
            "target_modules is 'q_proj'",
        ),  # PEFT: must match a module's whole name
    ],
)
def test_settings_that_mean_another_arithmetic_are_refused(
    adapter: Path, tiny: Qwen2Config, refused: Refused, edit: Edit, fields: dict[str, Any], says: str
) -> None:
    edit(adapter / "adapter_config.json", **fields)
    refused(read_adapter, adapter, tiny, says=(str(adapter / "adapter_config.json"), says))


@pytest.mark.parametrize(
    "targets", [r".*\.(q_proj|v_proj|down_proj)", r"model\.layers\.\d+\.(self_attn\.[qv]|mlp\.down)_proj"]
)
def test_a_regular_expression_is_read_as_peft_reads_it(
    adapter: Path, tiny: Qwen2Config, edit: Edit, targets: str
) -> None:
    edit(adapter / "adapter_config.json", target_modules=targets)
    assert read_adapter(adapter, tiny)[0] == LORA


def test_more_and_fewer_targets_than_tensors_are_refused(
    adapter: Path, tiny: Qwen2Config, refused: Refused, edit: Edit
) -> None:
    edit(adapter / "adapter_config.json", target_modules="all-linear")
    refused(read_adapter, adapter, tiny, says=("missing adapter tensors: layers.0.attn.k_proj.lora_A",))
    edit(adapter / "adapter_config.json", target_modules=["q_proj", "v_proj"])
    refused(
        read_adapter,
        adapter,
        tiny,
        says=("its config does not imply: layers.0.mlp.down_proj.lora_A", "layers.1.mlp.down_proj.lora_B"),
    )


def test_half_of_the_keys_are_refused(adapter: Path, tiny: Qwen2Config, refused: Refused) -> None:
    path = change_tensors(
        adapter, lambda tensors: [tensors.pop(name) for name in sorted(tensors) if "lora_B" in name]
    )
    refused(
        read_adapter, adapter, tiny, says=(f"{path}: missing adapter tensors: layers.0.attn.q_proj.lora_B",)
    )


def test_a_tensor_under_both_of_its_names_is_refused(
    adapter: Path, tiny: Qwen2Config, refused: Refused
) -> None:
    both = A0.replace(".weight", ".default.weight")
    change_tensors(adapter, lambda tensors: tensors.update({both: tensors[A0]}))
    refused(read_adapter, adapter, tiny, says=(repr(both), repr(A0), "are the same tensor"))


def test_another_rank_and_another_base_are_refused_with_both_sides(
    adapter: Path, make_config: Callable[..., Qwen2Config], refused: Refused, edit: Edit
) -> None:
    wider = make_config(hidden_size=64)
    says = (
        "does not fit this base: layers.0.attn.q_proj.lora_A is [3, 32], the model and rank 3 need [3, 64]",
    )
    refused(read_adapter, adapter, wider, says=says)
    refused(
        read_adapter, adapter, make_config(num_hidden_layers=3), says=("missing adapter tensors: layers.2.",)
    )
    refused(read_adapter, adapter, make_config(num_hidden_layers=1), says=("does not imply: layers.1.",))
    edit(adapter / "adapter_config.json", r=4)
    refused(
        read_adapter, adapter, make_config(), says=("lora_A is [3, 32], the model and rank 4 need [4, 32]",)
    )


def test_half_precision_tensors_are_widened_and_others_refused(
    adapter: Path, tiny: Qwen2Config, refused: Refused
) -> None:
    written = tensors_of(tiny)
    change_tensors(
        adapter, lambda tensors: tensors.update({k: v.astype(np.float16) for k, v in tensors.items()})
    )
    _, tensors = read_adapter(adapter, tiny)
    assert all(np.array_equal(tensors[name], written[name].astype(np.float16)) for name in written)
    path = adapter / "adapter_model.safetensors"
    path.unlink()
    write_tensors(path, {peft_name(name): bf16_from_float32(array) for name, array in written.items()})
    _, tensors = read_adapter(adapter, tiny)
    assert all(np.array_equal(tensors[name], round_to_bf16(written[name])) for name in written)
    path.unlink()
    whole = {peft_name(name): array.astype(np.int32) for name, array in written.items()}
    path.write_bytes(safetensors.numpy.save(whole))
    refused(read_adapter, adapter, tiny, says=(f"{A0!r} is I32, a float type is needed",))


def test_non_finite_values_are_counted(adapter: Path, tiny: Qwen2Config, refused: Refused) -> None:
    def spoil(tensors: dict[str, NDArray[Any]]) -> None:
        tensors[A0] = tensors[A0].copy()
        tensors[A0][0, :2] = [np.nan, np.inf]

    path = change_tensors(adapter, spoil)
    refused(read_adapter, adapter, tiny, says=(f"{path}: {A0!r} has 2 non-finite values",))


def test_a_directory_that_is_not_an_adapter_is_refused(
    adapter: Path, tiny: Qwen2Config, tmp_path: Path, refused: Refused
) -> None:
    refused(read_adapter, tmp_path / "absent", tiny, says=("no adapter_config.json; a PEFT adapter",))
    path = adapter / "adapter_model.safetensors"
    path.unlink()
    refused(read_adapter, adapter, tiny, says=(str(adapter), "no adapter_model.safetensors"))
    (adapter / "adapter_model.bin").write_bytes(b"\x80\x02")
    refused(read_adapter, adapter, tiny, says=("adapter_model.bin is a pickle and is refused",))
    os.mkfifo(path)
    refused(read_adapter, adapter, tiny, says=(str(path), "not a regular file"))
    (adapter / "adapter_config.json").unlink()
    os.mkfifo(adapter / "adapter_config.json")
    refused(read_adapter, adapter, tiny, says=("adapter_config.json: not a regular file",))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=3,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(sorted(FIELDS)), _VALUES, min_size=1, max_size=2))
def test_any_settings_are_read_or_refused(adapter: Path, tiny: Qwen2Config, fields: dict[str, Any]) -> None:
    path = adapter / "adapter_config.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | fields))
    try:
        read_adapter(adapter, tiny)
    except InputError as error:
        assert "\n" not in str(error)
    finally:
        path.write_text(whole)
