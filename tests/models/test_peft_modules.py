"""Adapters of any subset of modules, each with its own rank and scaling, as PEFT reads their configs.

peft_modules.json was recorded with PEFT (benchmarks/peers/make_adapter_modules.py).
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.engine import Tensors
from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.lora import LoraConfig, ModuleLora
from nf4tui.lora_init import initial_adapters
from nf4tui.models.adapter import check_base, read_adapter, tensor_shapes, write_adapter
from nf4tui.models.peft_config import config_text, read_lora_config
from nf4tui.models.qwen2 import Qwen2Config, module_name
from nf4tui.models.random_checkpoint import write_random_checkpoint

RECORDED = json.loads((Path(__file__).parent / "peft_modules.json").read_text("utf-8"))
ENDLESS = r"([a-z._0-9]+)+!"  # on any module's name
PATTERNED = LoraConfig(
    rank=4,
    alpha=8.0,
    rslora=True,
    targets=("q_proj", "down_proj"),
    modules=(
        ModuleLora("layers.0.attn.q_proj", 4, 8.0),
        ModuleLora("layers.1.attn.q_proj", 2, 3.5),
        ModuleLora("layers.1.mlp.down_proj", 4, 16.0),
    ),
)


def random_tensors(config: Qwen2Config, lora: LoraConfig, seed: int = 0) -> Tensors:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        for name, shape in tensor_shapes(config, lora).items()
    }


def peft_modules(lora: LoraConfig, layers: int) -> dict[str, list[float]]:
    """[rank, scaling] by Hugging Face's names."""
    found = {}
    for module in lora.adapted(layers):
        _, layer, _, projection = module.path.split(".")
        found[module_name(int(layer), projection)] = [lora.rank_of(module.path), lora.scaling_of(module.path)]
    return found


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: json.dumps(case["fields"])[:60])
def test_modules_ranks_and_scalings_are_pefts(
    tmp_path: Path, make_config: Callable[..., Qwen2Config], case: dict[str, Any]
) -> None:
    config = make_config(num_hidden_layers=RECORDED["layers"])
    fields = {"peft_type": "LORA", "r": 8, "lora_alpha": 24, **case["fields"]}
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(fields))
    lora = read_lora_config(path, config)
    assert peft_modules(lora, RECORDED["layers"]) == case["modules"]
    path.write_text(config_text(lora, config, "base"))
    assert read_lora_config(path, config) == lora


def test_an_adapter_with_modules_of_its_own_is_read_back_as_written(
    tmp_path: Path, tiny: Qwen2Config
) -> None:
    tensors = random_tensors(tiny, PATTERNED)
    write_adapter(tmp_path, tiny, PATTERNED, tensors, base_model="base")
    lora, found = read_adapter(tmp_path, tiny)
    assert lora == PATTERNED
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
    assert {tuple(tensor.shape) for name, tensor in found.items() if "1.attn.q_proj.lora_A" in name} == {
        (2, tiny.hidden_size)
    }


def test_a_rank_that_is_not_its_patterns_is_refused(tmp_path: Path, tiny: Qwen2Config) -> None:
    write_adapter(tmp_path, tiny, PATTERNED, random_tensors(tiny, PATTERNED), base_model="base")
    path = tmp_path / "adapter_config.json"
    fields = json.loads(path.read_text())
    fields["rank_pattern"] = {"q_proj": 3}
    path.write_text(json.dumps(fields))
    with pytest.raises(
        InputError, match=r"layers\.0\.attn\.q_proj\.lora_A is \[4, 32\], the model and rank 3 need"
    ):
        read_adapter(tmp_path, tiny)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": r"([a-z._0-9]*)*\1*!"},
        {"target_modules": ["q_proj"], "rank_pattern": {ENDLESS: 2}},
        {"target_modules": "all-linear", "alpha_pattern": {ENDLESS: 2}},
        {"target_modules": "all-linear", "exclude_modules": ENDLESS},
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": [ENDLESS]},
    ],
)
def test_a_regular_expression_that_runs_for_ever_is_stopped(
    tmp_path: Path, tiny: Qwen2Config, fields: dict[str, Any]
) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **fields}))
    began = time.monotonic()
    with pytest.raises(InputError, match=r"its regular expressions: .*too (much time|long)") as caught:
        read_lora_config(path, tiny)
    assert time.monotonic() - began < 10
    assert "\n" not in str(caught.value)


def test_the_engine_scales_every_module_by_its_own(tmp_path: Path, tiny: Qwen2Config) -> None:
    """The same adapter with all ranks padded to one and each B scaled beforehand gives the same logits."""
    from nf4tui.engine import Batch
    from nf4tui.models.load import load_model
    from nf4tui.reference.engine import ReferenceEngine

    write_random_checkpoint(tmp_path / "model", tiny)
    weights = load_model(tmp_path / "model")
    tensors = random_tensors(tiny, PATTERNED)
    uniform = LoraConfig(rank=4, alpha=4.0, targets=PATTERNED.targets)
    padded = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(tiny, uniform).items()}
    for module in PATTERNED.modules or ():
        padded[f"{module.path}.lora_A"][: module.rank] = tensors[f"{module.path}.lora_A"]
        scaled = tensors[f"{module.path}.lora_B"] * np.float32(PATTERNED.scaling_of(module.path))
        padded[f"{module.path}.lora_B"][:, : module.rank] = scaled
    ids = np.arange(1, 9, dtype=np.int32)[None]
    batch = Batch(ids, ids, np.arange(8, dtype=np.int32)[None], np.zeros((1, 8), np.int32))
    logits = [
        ReferenceEngine(weights, lora, adapters=adapters).logits(batch)
        for lora, adapters in ((PATTERNED, tensors), (uniform, padded), (None, {}))
    ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-5)
    assert np.abs(logits[0] - logits[2]).max() > 1e-2


def test_initial_adapters_have_the_modules_own_shapes(tiny: Qwen2Config) -> None:
    tensors = initial_adapters(tiny, PATTERNED, seed=3)
    assert {name: array.shape for name, array in tensors.items()} == tensor_shapes(tiny, PATTERNED)


def test_another_base_is_refused_with_both_sides_named(tmp_path: Path, tiny: Qwen2Config) -> None:
    lora = replace(PATTERNED, modules=None)
    tensors = random_tensors(tiny, lora)
    for name, base in (("stated", "ab" * 32), ("silent", None)):
        (tmp_path / name).mkdir()
        write_adapter(tmp_path / name, tiny, lora, tensors, base_model="some/base", base_sha256=base)
    check_base(tmp_path / "silent", "cd" * 32)
    check_base(tmp_path / "stated", "ab" * 32)
    with pytest.raises(
        InputError, match=r"another base, 'some/base' with hash 'abababababab', but this one has cdcd"
    ):
        check_base(tmp_path / "stated", "cd" * 32)


@pytest.mark.parametrize("base", [None, "ab" * 32])
def test_the_bytes_are_a_function_of_the_arguments(
    tmp_path: Path, tiny: Qwen2Config, base: str | None
) -> None:
    written = set()
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        tensors = random_tensors(tiny, PATTERNED)
        write_adapter(folder, tiny, PATTERNED, tensors, base_model="base", base_sha256=base)
        written.add(b"".join(path.read_bytes() for path in sorted(folder.iterdir())))
    assert len(written) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_adapter_that_is_not_finite_is_not_written(
    tmp_path: Path, tiny: Qwen2Config, value: float
) -> None:
    tensors = random_tensors(tiny, PATTERNED)
    tensors["layers.1.attn.q_proj.lora_B"][3, 1] = value
    with pytest.raises(TrainingFailedError, match=r"layers\.1\.attn\.q_proj\.lora_B has 1 non-finite values"):
        write_adapter(tmp_path, tiny, PATTERNED, tensors, base_model="base")
    assert list(tmp_path.iterdir()) == []
