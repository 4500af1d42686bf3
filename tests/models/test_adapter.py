"""Adapters go to PEFT's layout and back unchanged; one that is not wholly understood is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import PROJECTIONS, LoraConfig, projection_path
from nf4tui.models.adapter import our_name, peft_name, read_adapter, tensor_shapes, write_adapter
from nf4tui.models.qwen2 import Qwen2Config, read_config

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
    "lora", [LORA, LoraConfig(rank=1, alpha=16.0), LoraConfig(rank=64, targets=("k_proj",))]
)
def test_an_adapter_comes_back_exactly(tmp_path: Path, tiny: Qwen2Config, lora: LoraConfig) -> None:
    written = tensors_of(tiny, lora)
    write_adapter(tmp_path, tiny, lora, written, base_model="base")
    found, tensors = read_adapter(tmp_path, tiny)
    assert found == lora
    assert list(tensors) == list(lora.tensor_names(tiny.num_hidden_layers))
    for name, array in tensors.items():
        assert array.dtype == np.float32 and np.array_equal(array, written[name])


def test_the_bytes_depend_on_the_arguments_alone(adapter: Path, tmp_path: Path, tiny: Qwen2Config) -> None:
    again = tmp_path / "again"
    again.mkdir()
    reordered = dict(reversed(tensors_of(tiny).items()))
    write_adapter(again, tiny, LORA, reordered, base_model="some/base")
    names = {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in again.iterdir()} == names
    for name in names:
        assert (again / name).read_bytes() == (adapter / name).read_bytes()


def test_the_files_are_those_that_peft_reads(adapter: Path, tiny: Qwen2Config) -> None:
    text = (adapter / "adapter_config.json").read_text()
    raw = json.loads(text)
    assert set(raw) == FIELDS and list(raw) == sorted(raw) and text.endswith("}\n")
    assert raw["target_modules"] == ["down_proj", "q_proj", "v_proj"]
    assert (raw["r"], raw["lora_alpha"], raw["use_rslora"], raw["lora_dropout"]) == (3, 7.5, True, 0.05)
    assert (raw["peft_type"], raw["task_type"], raw["bias"]) == ("LORA", "CAUSAL_LM", "none")
    assert raw["base_model_name_or_path"] == "some/base"
    saved = safetensors.numpy.load((adapter / "adapter_model.safetensors").read_bytes())
    assert set(saved) == {peft_name(name) for name in tensors_of(tiny)}
    assert saved[A0].shape == (3, 32) and saved[A0.replace("lora_A", "lora_B")].shape == (32, 3)


def test_a_whole_alpha_is_written_as_peft_writes_it(tmp_path: Path, tiny: Qwen2Config) -> None:
    lora = LoraConfig(rank=2, alpha=32.0)
    write_adapter(tmp_path, tiny, lora, tensors_of(tiny, lora), base_model="b")
    assert '"lora_alpha": 32,' in (tmp_path / "adapter_config.json").read_text()


def test_incomplete_tensors_are_not_written(tmp_path: Path, tiny: Qwen2Config, refused: Refused) -> None:
    tensors = tensors_of(tiny)
    tensors.popitem()
    with pytest.raises(InputError, match="missing adapter tensors"):
        write_adapter(tmp_path, tiny, LORA, tensors, base_model="b")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("case", ["bnb", "untied-gqa7-rslora", "qv-only-head128"])
def test_adapters_that_peft_wrote_are_read(golden: Path, case: str) -> None:
    stated = json.loads((golden / case / "case.json").read_text())
    lora, tensors = read_adapter(golden / case / "adapter", read_config(golden / case / "base"))
    assert (lora.rank, lora.alpha, lora.rslora) == (stated["rank"], stated["alpha"], stated["rslora"])
    assert set(lora.targets) == set(stated["targets"])
    saved = safetensors.numpy.load((golden / case / "adapter" / "adapter_model.safetensors").read_bytes())
    assert {peft_name(name) for name in tensors} == set(saved)
    assert all(np.array_equal(array, saved[peft_name(name)]) for name, array in tensors.items())


# Names.


@given(
    layer=st.integers(0, 999),
    projection=st.sampled_from(PROJECTIONS),
    part=st.sampled_from(["lora_A", "lora_B"]),
)
def test_the_two_names_of_a_tensor_are_inverses(layer: int, projection: str, part: str) -> None:
    ours = f"{projection_path(layer, projection)}.{part}"
    assert our_name(peft_name(ours)) == ours
    assert our_name(peft_name(ours).replace(part, f"{part}.default")) == ours


@given(name=st.text(max_size=30) | st.from_regex(r"base_model\.model\.model\.layers\.\w+\..*lora_A\.weight"))
def test_any_name_is_ours_only_if_it_is_pefts_of_ours(name: str) -> None:
    ours = our_name(name)
    assert ours is None or peft_name(ours) == name.replace(".default.weight", ".weight")


@pytest.mark.parametrize(
    "name",
    [
        A0.replace("self_attn", "mlp"),
        A0.replace("q_proj", "qkv_proj"),
        A0.replace("layers.0", "layers.00"),
        A0.replace("layers.0", "layers.\u0663"),
        A0.replace("layers.0", "layers." + "9" * 5000),
        A0.replace("lora_A.weight", "lora_A.other.weight"),
        A0.replace("lora_A.weight", "lora_magnitude_vector"),
        A0.removeprefix("base_model.model."),
        A0 + "\n",
        "base_model.model.lm_head.lora_A.weight",
    ],
)
def test_a_foreign_tensor_is_refused(adapter: Path, tiny: Qwen2Config, refused: Refused, name: str) -> None:
    assert our_name(name) is None
    path = change_tensors(adapter, lambda tensors: tensors.update({name: np.zeros((3, 32), np.float32)}))
    with pytest.raises(InputError) as caught:
        read_adapter(adapter, tiny)
    assert f"{path}: not LoRA matrices of a Qwen2 projection: " in str(caught.value)
    assert len(str(caught.value)) < 1000
