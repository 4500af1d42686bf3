"""The recorded oracle (transformers, PEFT, bitsandbytes, in float32) against both references."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nf4tui.engine import PADDING, Batch, Update
from nf4tui.models.adapter import our_name, read_adapter
from nf4tui.models.load import load_model
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.engine import ReferenceEngine

LIMIT = 1e-5
Recorded = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def recorded(golden: Path) -> Recorded:
    return load_file(golden / "golden.safetensors")


@pytest.fixture(scope="module")
def batch(recorded: Recorded) -> Batch:
    mask = recorded["attention_mask"]
    positions = np.broadcast_to(np.arange(mask.shape[1], dtype=np.int32), mask.shape)
    documents = np.where(mask == 1, 0, PADDING).astype(np.int32)
    ids, labels = (recorded[name].astype(np.int32) for name in ("input_ids", "labels"))
    return Batch(ids, labels, positions, documents)


@pytest.fixture(scope="module")
def update(golden: Path) -> Update:
    options = json.loads((golden / "case.json").read_text())["optimizer"]
    beta1, beta2 = options.pop("betas")
    return Update(step=1, beta1=beta1, beta2=beta2, **options)


@pytest.fixture(params=[np.float32, np.float64])
def engine(golden: Path, request: pytest.FixtureRequest) -> ReferenceEngine:
    weights = load_model(golden / "base")
    lora, adapters = read_adapter(golden / "adapter", weights.config)
    return ReferenceEngine(weights, lora, dtype=request.param, adapters=adapters)


def _by_our_names(recorded: Recorded, prefix: str) -> Recorded:
    found = {}
    for name, tensor in recorded.items():
        if name.startswith(prefix):
            ours = our_name(name.removeprefix(prefix).replace(".default.", "."))
            assert ours is not None
            found[ours] = tensor
    return found


def test_hidden_states_logits_loss_and_gradients(
    engine: ReferenceEngine, batch: Batch, recorded: Recorded
) -> None:
    real = batch.document_ids != PADDING
    taps = dict(engine.capture(batch))
    for place, tap in enumerate(("hidden.0", "layers.0.output", "final_norm")):
        assert rel_l2(taps[tap][real], recorded[f"hidden.{place}"][real]) <= LIMIT
    assert rel_l2(taps["logits"][real], recorded["logits"][real]) <= LIMIT
    assert rel_l2(taps["loss"], recorded["loss"][0]) <= LIMIT
    gradients = _by_our_names(recorded, "grad.")
    assert list(engine.adapters()) == list(gradients) or set(engine.adapters()) == set(gradients)
    for name, gradient in gradients.items():
        assert rel_l2(taps[name.replace(".lora_", ".grad_lora_")], gradient) <= LIMIT, name


def test_one_adamw_step_of_the_recorded_gradients(
    engine: ReferenceEngine, batch: Batch, recorded: Recorded, update: Update
) -> None:
    norm = engine.apply_gradients(_by_our_names(recorded, "grad."), update)
    assert rel_l2(norm, recorded["grad_norm"][0]) <= LIMIT
    adapters = engine.adapters()
    for name, expected in _by_our_names(recorded, "after_step.").items():
        assert rel_l2(adapters[name], expected) <= 1e-6, name
    after = engine.evaluate(batch)
    assert rel_l2(after.total / after.tokens, recorded["loss_after_step"][0]) <= LIMIT


def test_a_step_of_its_own_gradients(
    engine: ReferenceEngine, batch: Batch, recorded: Recorded, update: Update
) -> None:
    result = engine.step([batch], update)
    assert rel_l2(result.loss, recorded["loss"][0]) <= LIMIT
    assert rel_l2(result.grad_norm, recorded["grad_norm"][0]) <= LIMIT
    assert result.tokens == int(recorded["attention_mask"].sum()) and result.nonfinite == 0
    after = engine.evaluate(batch)
    assert rel_l2(after.total / after.tokens, recorded["loss_after_step"][0]) <= LIMIT


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("base", ["bnb4", "bnb4-dq"])
def test_prequantised_bases_without_adapter(base: str, dtype: type, golden: Path, batch: Batch) -> None:
    engine = ReferenceEngine(load_model(golden / base), None, dtype=dtype)
    expected = load_file(golden / base / "golden_logits.safetensors")["logits"]
    real = batch.document_ids != PADDING
    assert rel_l2(engine.logits(batch)[real], expected[real]) <= LIMIT


def test_the_case_tells_the_adapter_from_the_base(
    engine: ReferenceEngine, golden: Path, batch: Batch, make_batch: Callable[..., Batch]
) -> None:
    alone = ReferenceEngine(load_model(golden / "base"), None)
    assert rel_l2(alone.logits(batch), engine.logits(batch)) > 1e-2
