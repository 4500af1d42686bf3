"""The whole engine against the reference, exact and with the declared rounding points.

The simulator runs every thread of every kernel, so that models here are as small as they can be: one layer, a few
tokens. Tap by tap the engine is judged by tests/parity/test_gate.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nf4tui.cuda_kernels.arena import Planner
from nf4tui.cuda_kernels.device import SimulatedDevice
from nf4tui.cuda_kernels.engine import CudaEngine
from nf4tui.cuda_kernels.plan import plan
from nf4tui.cuda_kernels.qwen2 import document_starts
from nf4tui.engine import IGNORE_INDEX, PADDING, Batch, Update
from nf4tui.errors import CannotRunError, InputError
from nf4tui.lora import LoraConfig, ModuleLora
from nf4tui.models.load import load_model
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.engine import ReferenceEngine
from nf4tui.reference.reductions import rel_l2
from nf4tui.reference.rounding import BF16

LORA = LoraConfig(rank=5, alpha=7.0, targets=("q_proj", "v_proj", "down_proj"))
PATTERNED = LoraConfig(
    rank=3,
    alpha=6.0,
    rslora=True,
    targets=("k_proj", "up_proj"),
    modules=(ModuleLora("layers.0.attn.k_proj", 3, 6.0), ModuleLora("layers.0.mlp.up_proj", 2, 5.0)),
)
CONFIG = Qwen2Config(
    vocab_size=70,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
UPDATE = Update(step=1, lr=0.01, clip=0.3, seed=7)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> ModelWeights:
    folder = tmp_path_factory.mktemp("model") / "m"
    write_random_checkpoint(folder, CONFIG)
    return load_model(folder)


def batch_of(seed: int, lengths: list[list[int]], T: int) -> Batch:
    """Packed documents and padding."""
    random = np.random.default_rng(seed)
    B = len(lengths)
    ids = random.integers(0, CONFIG.vocab_size, (B, T)).astype(np.int32)
    labels = np.where(random.random((B, T)) < 0.7, ids, IGNORE_INDEX).astype(np.int32)
    documents, positions = np.full((B, T), PADDING, np.int32), np.zeros((B, T), np.int32)
    for row, parts in enumerate(lengths):
        at = 0
        for number, length in enumerate(parts):
            documents[row, at : at + length] = number
            positions[row, at : at + length] = np.arange(length)
            at += length
    return Batch(ids, labels, positions, documents)


PACKED, SHORT = batch_of(1, [[5, 4], [3]], 11), batch_of(2, [[7]], 7)


def adapters_of(engine: ReferenceEngine) -> dict[str, np.ndarray]:
    """B is not zero, so that the delta and the gradient of A show."""
    random = np.random.default_rng(9)
    return {
        name: (0.1 * random.standard_normal(tensor.shape)).astype(np.float32)
        for name, tensor in engine.adapters().items()
    }


Engines = tuple[CudaEngine, ReferenceEngine, ReferenceEngine]


@pytest.fixture
def engines(lab: Any, weights: ModelWeights) -> Callable[..., Engines]:
    """The engine, the truth, and the emulation, from one state."""

    def make(lora: LoraConfig, **options: Any) -> Engines:
        exact = ReferenceEngine(weights, lora, dtype=np.float64)
        adapters = adapters_of(exact)
        exact.load_adapters(adapters)
        emulated = ReferenceEngine(weights, lora, rnd=BF16, adapters=adapters)
        return CudaEngine(lab.device, weights, lora, adapters=adapters, **options), exact, emulated

    return make


@pytest.mark.parametrize(
    ("lora", "recompute"), [(LORA, True), (PATTERNED, False), (replace(LORA, dropout=0.4), False)],
    ids=["recompute", "patterned", "dropout"],
)  # fmt: skip
def test_a_step_of_unequal_micro_batches_is_the_references(
    engines: Callable[..., Engines], lora: LoraConfig, recompute: bool
) -> None:
    engine, exact, emulated = engines(lora, recompute=recompute)
    found, right, legal = (e.step([PACKED, SHORT], UPDATE) for e in (engine, exact, emulated))
    counts = found.tokens, found.supervised_tokens, found.nonfinite
    assert counts == (right.tokens, right.supervised_tokens, 0)
    assert found.loss == pytest.approx(right.loss, abs=3e-3)
    allowed = 2 * abs(legal.grad_norm / right.grad_norm - 1) + 1e-3
    assert found.grad_norm == pytest.approx(right.grad_norm, rel=allowed)
    # AdamW's first moment after one step is a tenth of the clipped gradient.
    moments = [e.optimizer_state().exp_avg for e in (engine, exact, emulated)]
    for name, truth in moments[1].items():
        error, cost = rel_l2(moments[0][name], truth), rel_l2(moments[2][name], truth)
        assert error <= 2 * cost + 2e-3, f"{name}: {error:.2e} where bfloat16 costs {cost:.2e}"


def test_keeping_and_recomputing_give_the_same_bits_each_time(engines: Callable[..., Engines]) -> None:
    found = []
    for recompute in (False, True, False):
        engine = engines(PATTERNED, recompute=recompute)[0]
        result = engine.step([SHORT], UPDATE)
        found.append((result.loss, result.grad_norm, [t.tobytes() for t in engine.adapters().values()]))
    assert found[0] == found[1] == found[2]


def test_a_recorded_step_goes_on_where_a_plain_one_left(engines: Callable[..., Engines]) -> None:
    """The second and third step of a shape are replays; evaluations between them see the new adapters."""
    engine, exact, _ = engines(PATTERNED)
    for step in (1, 2, 3):
        update = replace(UPDATE, step=step)
        found, right = engine.step([SHORT], update), exact.step([SHORT], update)
        assert found.loss == pytest.approx(right.loss, abs=3e-3)
    losses = [e.evaluate(SHORT) for e in (engine, exact)]
    assert losses[0].tokens == losses[1].tokens
    assert losses[0].total == pytest.approx(losses[1].total, abs=3e-3 * losses[1].tokens)
    assert losses[0].total / losses[0].tokens < found.loss


def test_the_update_is_the_references_given_the_gradients(engines: Callable[..., Engines]) -> None:
    engine, exact, _ = engines(LORA)
    adapters = exact.adapters()
    for step in (1, 2):
        gradients = {name: np.float32(step) * tensor for name, tensor in adapters.items()}
        update = Update(step=step, lr=0.01, weight_decay=0.1, clip=0.3)
        norms = [e.apply_gradients(gradients, update) for e in (engine, exact)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for name, tensor in exact.adapters().items():
        assert rel_l2(engine.adapters()[name], tensor) <= 1e-6
    state = engine.optimizer_state()
    assert state.updates == 2
    other, _, _ = engines(LORA)
    other.load_optimizer_state(state)
    for found, right in zip(other.optimizer_state().exp_avg.values(), state.exp_avg.values(), strict=True):
        np.testing.assert_array_equal(found, right)


def test_a_gradient_that_is_not_finite_changes_nothing(engines: Callable[..., Engines]) -> None:
    engine, _, _ = engines(LORA)
    before = engine.adapters()
    gradients = {name: np.full_like(tensor, np.nan) for name, tensor in before.items()}
    assert np.isnan(engine.apply_gradients(gradients, UPDATE))
    assert engine.optimizer_state().updates == 0
    for name, tensor in engine.adapters().items():
        np.testing.assert_array_equal(tensor, before[name])


def test_decoding_is_the_references(engines: Callable[..., Engines]) -> None:
    decoders = [engine.start_decoding(24) for engine in engines(PATTERNED)]
    for ids in ([1, 2, 3], [7], list(range(10, 28)), [5]):
        found, exact, emulated = (decoder.extend(ids) for decoder in decoders)
        assert rel_l2(found, exact) <= 1.3 * rel_l2(emulated, exact) + 1e-3
    for bad in ([], [1, 2], [70], [-1]):
        with pytest.raises(ValueError, match=r"fit|vocabulary"):
            decoders[0].extend(bad)


def test_what_a_kernel_could_not_read_is_refused(engines: Callable[..., Engines]) -> None:
    engine, _, _ = engines(LORA)
    for field, value, message in (
        ("input_ids", 70, "input_ids: token 70"),
        ("labels", 71, "labels: token 71"),
        ("positions", 64, "positions: the model has 64"),
        ("positions", -1, "positions"),
    ):
        array = getattr(SHORT, field).copy()
        array[0, 3] = value
        with pytest.raises(InputError, match=message):
            engine.step([replace(SHORT, **{field: array})], UPDATE)
    with pytest.raises(InputError, match="positions"):
        engine.start_decoding(65)


def test_the_plan_is_what_is_taken_and_what_does_not_fit_is_refused(weights: ModelWeights) -> None:
    taken: list[int] = []

    class Counting(SimulatedDevice):
        room = 2**40

        def empty(self, size: int, dtype: Any) -> Any:
            taken.append(size * np.dtype(dtype).itemsize)
            return super().empty(size, dtype)

        def free_bytes(self) -> int:
            return self.room

    device = Counting()
    engine = CudaEngine(device, weights, LORA, recompute=False)
    planned = plan(CONFIG, LORA, (2, 11), recompute=False)
    assert planned.parameters + planned.adapters in taken
    taken.clear()
    engine.reserve([(2, 11)])
    assert taken == [planned.passes]
    device.room = 1000
    with pytest.raises(CannotRunError, match="GiB are free"):
        engine.reserve([(4, 11)])
    assert plan(CONFIG, LORA, (2, 11), recompute=True).passes == planned.passes  # one layer: nothing to save
    with pytest.raises(CannotRunError, match="multiples of 8"):
        CudaEngine(device, replace_config(weights, intermediate_size=41), LORA)
    assert Planner().bytes == 0


def replace_config(weights: ModelWeights, **changes: Any) -> ModelWeights:
    return replace(weights, config=replace(weights.config, **changes))


def test_starts_are_told_from_documents() -> None:
    ids = np.array([[0, 0, 1, 1, PADDING], [PADDING] * 5, [4, 5, 5, 5, 5]])
    assert document_starts(ids).tolist() == [[0, 0, 2, 2, 5], [5] * 5, [0, 1, 1, 1, 1]]
