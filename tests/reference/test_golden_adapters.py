"""Adapters of uneven shape that PEFT wrote (benchmarks/peers/make_adapters.py): what they compute is what PEFT
computed with them, also after nf4tui has written them anew."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nf4tui.engine import Batch, Tensors
from nf4tui.lora import LoraConfig, projection_path
from nf4tui.models.adapter import our_name, read_adapter, write_adapter
from nf4tui.models.load import load_model
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.engine import ReferenceEngine

LIMIT = 1e-5
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.name for path in (GOLDEN / "adapters").iterdir())
Recorded = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    return load_model(GOLDEN / "tied" / "base")


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / "adapters" / str(request.param)


@pytest.fixture
def recorded(folder: Path) -> Recorded:
    return load_file(folder / "golden.safetensors")


def batch_of(recorded: Recorded) -> Batch:
    ids = recorded["input_ids"].astype(np.int32)
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    return Batch(ids, ids, positions, np.zeros(ids.shape, np.int32))


def modules(lora: LoraConfig, layers: int) -> dict[str, tuple[int, float]]:
    """(rank, scaling) by path."""
    return {
        module.path: (lora.rank_of(module.path), lora.scaling_of(module.path))
        for module in lora.adapted(layers)
    }


def test_the_cases_are_those_that_one_rank_and_scaling_cannot_say(weights: ModelWeights) -> None:
    assert set(CASES) == {
        "exclude-modules",
        "layers-to-transform",
        "rank-and-alpha-pattern",
        "regex-targets",
        "rslora-rank-pattern",
        "unsloth-regex",
    }
    for name in CASES:
        lora, _ = read_adapter(GOLDEN / "adapters" / name, weights.config)
        assert lora.modules is not None, name


def test_modules_ranks_and_scalings_are_pefts(
    folder: Path, recorded: Recorded, weights: ModelWeights
) -> None:
    lora, _ = read_adapter(folder, weights.config)
    expected = {}
    for name, values in recorded.items():
        if name.startswith("rank_scaling."):
            _, _, _, layer, _, projection = name.split(".")
            expected[projection_path(int(layer), projection)] = (int(values[0]), float(values[1]))
    assert modules(lora, weights.config.num_hidden_layers) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_loss_and_gradients_are_pefts(
    folder: Path, recorded: Recorded, weights: ModelWeights, dtype: type
) -> None:
    lora, adapters = read_adapter(folder, weights.config)
    taps = dict(ReferenceEngine(weights, lora, dtype=dtype, adapters=adapters).capture(batch_of(recorded)))
    assert rel_l2(taps["logits"], recorded["logits"]) <= LIMIT
    assert rel_l2(taps["loss"], recorded["loss"][0]) <= LIMIT
    gradients = {
        our_name(name.removeprefix("grad.")): tensor
        for name, tensor in recorded.items()
        if name.startswith("grad.")
    }
    assert gradients.keys() == adapters.keys()
    for name, gradient in gradients.items():
        assert rel_l2(taps[str(name).replace(".lora_", ".grad_lora_")], gradient) <= LIMIT, name


def test_written_anew_it_is_the_same_adapter(
    folder: Path, recorded: Recorded, weights: ModelWeights, tmp_path: Path
) -> None:
    lora, adapters = read_adapter(folder, weights.config)
    write_adapter(tmp_path, weights.config, lora, adapters, base_model="tied")
    again, tensors = read_adapter(tmp_path, weights.config)
    assert again == lora
    saved = load_file(folder / "adapter_model.safetensors")
    written = load_file(tmp_path / "adapter_model.safetensors")
    assert written.keys() == saved.keys()
    assert all(np.array_equal(written[name], saved[name]) for name in saved)
    logits = ReferenceEngine(weights, again, adapters=tensors).logits(batch_of(recorded))
    assert rel_l2(logits, recorded["logits"]) <= LIMIT


def test_what_is_written_names_every_module_without_an_expression(
    folder: Path, weights: ModelWeights, tmp_path: Path
) -> None:
    lora, adapters = read_adapter(folder, weights.config)
    write_adapter(tmp_path, weights.config, lora, adapters, base_model="tied")
    fields = json.loads((tmp_path / "adapter_config.json").read_text())
    names = {name.split(".lora_")[0] for name in load_file(tmp_path / "adapter_model.safetensors")}
    assert {f"base_model.model.{name}" for name in fields["target_modules"]} == names
    assert {*fields["rank_pattern"], *fields["alpha_pattern"]} <= set(fields["target_modules"])


def test_no_modules_part_is_too_small_to_be_missed(
    folder: Path, recorded: Recorded, weights: ModelWeights
) -> None:
    """Without any one of them the logits are far off, so the limits above hold for each."""
    lora, adapters = read_adapter(folder, weights.config)
    for module in lora.adapted(weights.config.num_hidden_layers):
        without: Tensors = {**adapters, f"{module.path}.lora_B": 0 * adapters[f"{module.path}.lora_B"]}
        logits = ReferenceEngine(weights, lora, adapters=without).logits(batch_of(recorded))
        assert rel_l2(logits, recorded["logits"]) > 100 * LIMIT, module.path
