"""The Engine protocol over the reference."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nf4tui.bf16 import round_to_bf16
from nf4tui.engine import IGNORE_INDEX, Batch, OptimizerState, Tensors, Update
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference import engine as engine_module
from nf4tui.reference import parameters
from nf4tui.reference.engine import ReferenceEngine
from nf4tui.reference.groups import document_groups
from nf4tui.reference.rounding import BF16, EXACT

LORA = LoraConfig(rank=3, alpha=8.0)
UPDATE = Update(step=1, lr=1e-2)

Batches = Callable[..., Batch]
Engines = Callable[..., ReferenceEngine]


@pytest.fixture
def make_engine(make_weights: Callable[..., ModelWeights], make_adapters: Callable[..., Tensors]) -> Engines:
    def make(lora: LoraConfig = LORA, **options: Any) -> ReferenceEngine:
        weights = make_weights()
        return ReferenceEngine(weights, lora, adapters=make_adapters(weights.config, lora), **options)

    return make


def _same(first: Tensors, second: Tensors) -> bool:
    return list(first) == list(second) and all((first[name] == second[name]).all() for name in first)


def _row(batch: Batch, row: int) -> Batch:
    at = np.s_[row : row + 1]
    return Batch(batch.input_ids[at], batch.labels[at], batch.positions[at], batch.document_ids[at])


def test_eight_micro_batches_of_one_row_equal_one_of_eight(make_engine: Engines, make_batch: Batches) -> None:
    # Rows with very different numbers of supervised tokens: a mean of means would be far off.
    batch = make_batch(61, rows=((3,), (12,), (5, 5), (2,), (11, 1), (7,), (4, 4, 4), (9,)))
    whole, parts = make_engine(), make_engine()
    one = whole.step([batch], UPDATE)
    eight = parts.step([_row(batch, row) for row in range(8)], UPDATE)
    assert (one.tokens, one.supervised_tokens) == (eight.tokens, eight.supervised_tokens)
    assert rel_l2(eight.loss, one.loss) <= 1e-6 and rel_l2(eight.grad_norm, one.grad_norm) <= 1e-6
    for name, tensor in whole.adapters().items():
        assert rel_l2(parts.adapters()[name], tensor) <= 1e-6, name
    means = [whole.evaluate(_row(batch, row)) for row in range(8)]
    mean_of_means = np.mean([part.total / part.tokens for part in means])
    assert rel_l2(mean_of_means, one.loss) > 1e-2


def test_groups_of_documents_change_nothing(
    make_engine: Engines, make_batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(61)
    assert [group.input_ids.size for group, _ in document_groups(batch, 10)] == [10, 6, 9]
    assert [group.input_ids.size for group, _ in document_groups(batch)] == [25]
    whole = make_engine(dtype=np.float64)
    expected, loss = whole.step([batch], UPDATE), whole.evaluate(batch)
    monkeypatch.setattr(engine_module, "document_groups", lambda batch: document_groups(batch, 10))
    parts = make_engine(dtype=np.float64)
    result = parts.step([batch], UPDATE)
    assert rel_l2(result.loss, expected.loss) < 1e-13
    assert rel_l2(result.grad_norm, expected.grad_norm) < 1e-13
    assert rel_l2(parts.evaluate(batch).total, loss.total) < 1e-10


def test_a_group_keeps_the_targets_of_its_documents(make_batch: Batches) -> None:
    batch = make_batch(61)
    for group, places in document_groups(batch, 7):
        np.testing.assert_array_equal(group.targets[0], batch.targets.reshape(-1)[places])
        np.testing.assert_array_equal(group.positions[0], batch.positions.reshape(-1)[places])
    assert sum(group.tokens for group, _ in document_groups(batch, 7)) == batch.tokens


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_repeats_bit_for_bit_and_lowers_the_loss(
    dtype: type, make_engine: Engines, make_batch: Batches
) -> None:
    batch = make_batch(61)
    first, second = make_engine(dtype=dtype), make_engine(dtype=dtype)
    losses = []
    for step in range(1, 13):
        update = replace(UPDATE, step=step)
        result = first.step([batch], update)
        assert result == second.step([batch], update)
        losses.append(result.loss)
    assert _same(first.adapters(), second.adapters()) and losses[-1] < 0.8 * losses[0]


def test_a_saved_state_goes_on_bit_for_bit(make_engine: Engines, make_batch: Batches) -> None:
    batch, engine = make_batch(61), make_engine(LoraConfig(rank=3, alpha=8.0, dropout=0.2))
    for step in (1, 2):
        engine.step([batch], replace(UPDATE, step=step))
    adapters, state = engine.adapters(), engine.optimizer_state()
    assert state.updates == 2 and list(state.exp_avg) == list(adapters) == list(state.exp_avg_sq)
    resumed = make_engine(LoraConfig(rank=3, alpha=8.0, dropout=0.2))
    resumed.load_adapters(dict(reversed(adapters.items())))
    resumed.load_optimizer_state(state)
    results = [each.step([batch], replace(UPDATE, step=3)) for each in (engine, resumed)]
    assert results[0] == results[1] and _same(engine.adapters(), resumed.adapters())
    # What was handed out is a copy: the third step must not have reached it.
    assert state.updates == 2 and not _same(adapters, engine.adapters())


def test_dropout_is_a_function_of_seed_step_and_micro_batch(
    make_engine: Engines, make_batch: Batches
) -> None:
    lora = LoraConfig(rank=3, alpha=8.0, dropout=0.5)
    batch = make_batch(61)

    def loss(update: Update, batches: int = 1) -> float:
        return make_engine(lora).step([batch] * batches, update).loss

    assert loss(UPDATE) == loss(UPDATE)
    assert len({loss(UPDATE), loss(replace(UPDATE, step=2)), loss(replace(UPDATE, seed=1))}) == 3
    assert abs(loss(UPDATE, 2) - loss(UPDATE)) > 1e-6
    assert make_engine(lora).evaluate(batch) == make_engine().evaluate(batch)


def test_dropout_does_not_depend_on_how_documents_are_grouped(
    make_engine: Engines, make_batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora, batch = LoraConfig(rank=3, alpha=8.0, dropout=0.5), make_batch(61)
    expected = make_engine(lora, dtype=np.float64).step([batch], UPDATE)
    monkeypatch.setattr(engine_module, "document_groups", lambda batch: document_groups(batch, 1))
    result = make_engine(lora, dtype=np.float64).step([batch], UPDATE)
    assert rel_l2(result.loss, expected.loss) < 1e-13


def test_a_nonfinite_loss_is_reported_as_it_is_and_nothing_is_updated(
    make_engine: Engines, make_batch: Batches
) -> None:
    engine = make_engine()
    adapters = engine.adapters()
    adapters["layers.1.mlp.up_proj.lora_B"][0, 0] = np.inf
    engine.load_adapters(adapters)
    result = engine.step([make_batch(61)], UPDATE)
    assert not np.isfinite(result.loss) and result.nonfinite > 1 and result.nonfinite_tensor == "loss"
    assert not np.isfinite(result.grad_norm)
    assert _same(engine.adapters(), adapters) and engine.optimizer_state().updates == 0


def test_a_nonfinite_gradient_under_a_finite_loss_is_named(make_engine: Engines, make_batch: Batches) -> None:
    engine = make_engine(LoraConfig(rank=3, alpha=3e6, targets=("v_proj",)))
    adapters = engine.adapters()
    # With B = 0 the loss does not see A, but dB = s dy^T (x A^T) overflows.
    for name, tensor in adapters.items():
        tensor[:] = 3e34 if name == "layers.0.attn.v_proj.lora_A" else 0
    engine.load_adapters(adapters)
    result = engine.step([make_batch(61)], UPDATE)
    assert np.isfinite(result.loss) and result.nonfinite > 0
    assert result.nonfinite_tensor == "layers.0.attn.v_proj.grad_lora_B"
    assert _same(engine.adapters(), adapters) and engine.optimizer_state().updates == 0


def test_given_gradients_that_are_not_finite_are_not_applied(make_engine: Engines) -> None:
    engine = make_engine()
    before = engine.adapters()
    gradients = {name: np.ones_like(tensor) for name, tensor in before.items()}
    gradients["layers.0.attn.k_proj.lora_A"][1, 1] = np.nan
    assert np.isnan(engine.apply_gradients(gradients, UPDATE))
    assert _same(engine.adapters(), before) and engine.optimizer_state().updates == 0


def test_clipping_scales_all_gradients_together(make_engine: Engines) -> None:
    clipped, scaled = make_engine(dtype=np.float64), make_engine(dtype=np.float64)
    random = np.random.default_rng(0)
    gradients = {name: random.standard_normal(tensor.shape) for name, tensor in clipped.adapters().items()}
    update = replace(UPDATE, eps=0.1)  # with a large eps AdamW sees the size of a gradient
    norm = clipped.apply_gradients(gradients, replace(update, clip=0.5))
    expected = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    assert rel_l2(norm, expected) < 1e-12
    small = {name: gradient * (0.5 / norm) for name, gradient in gradients.items()}
    scaled.apply_gradients(small, replace(update, clip=0))
    for name, tensor in clipped.adapters().items():
        assert rel_l2(tensor, scaled.adapters()[name]) < 1e-6


def test_nothing_supervised_is_refused(make_engine: Engines, make_batch: Batches) -> None:
    batch = make_batch(61)
    empty = replace(batch, labels=np.full_like(batch.labels, IGNORE_INDEX))
    engine = make_engine()
    with pytest.raises(InputError, match="step 1: no token"):
        engine.step([empty], UPDATE)
    assert engine.evaluate(empty).tokens == 0 and engine.evaluate(empty).total == 0
    # Beside a supervised one it adds nothing.
    assert engine.step([empty, batch], UPDATE).supervised_tokens == batch.supervised_tokens


@pytest.mark.parametrize(
    ("field", "token"), [("input_ids", 61), ("input_ids", -1), ("labels", 61), ("labels", -7)]
)
def test_a_token_outside_the_vocabulary_is_refused(
    field: str, token: int, make_engine: Engines, make_batch: Batches
) -> None:
    batch = make_batch(61)
    ids = getattr(batch, field).copy()
    ids[1, 2] = token
    with pytest.raises(InputError, match=f"{field}: token {token} is not in the model's vocabulary of 61"):
        make_engine().step([replace(batch, **{field: ids})], UPDATE)


def test_adapters_and_optimiser_state_must_match_exactly(make_engine: Engines) -> None:
    engine = make_engine()
    adapters, state = engine.adapters(), engine.optimizer_state()
    name = "layers.1.mlp.down_proj.lora_B"
    missing = {key: tensor for key, tensor in adapters.items() if key != name}
    wrong = {**adapters, name: adapters[name].T}
    for tensors in (missing, {**adapters, "layers.9.attn.q_proj.lora_A": adapters[name]}, wrong):
        with pytest.raises(InputError):
            engine.load_adapters(tensors)
        with pytest.raises(InputError):
            engine.load_optimizer_state(OptimizerState(1, tensors, state.exp_avg_sq))
        with pytest.raises(InputError):
            engine.apply_gradients(tensors, UPDATE)
    assert _same(engine.adapters(), adapters)


def test_the_base_model_alone_has_no_adapters_and_takes_none(
    make_weights: Callable[..., ModelWeights], make_engine: Engines, make_batch: Batches
) -> None:
    base, batch = ReferenceEngine(make_weights(), None), make_batch(61)
    assert base.adapters() == {} and base.device == "cpu"
    with pytest.raises(InputError, match="without LoRA"):
        base.load_adapters(make_engine().adapters())
    zero = make_engine()
    zero.load_adapters({k: v * (0 if k.endswith("B") else 1) for k, v in zero.adapters().items()})
    assert rel_l2(zero.logits(batch), base.logits(batch)) < 1e-6
    assert rel_l2(make_engine().logits(batch), base.logits(batch)) > 1e-2


def test_large_models_dequantise_at_every_use_with_the_same_result(
    make_engine: Engines, make_batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, kept = make_batch(61), make_engine()
    expected = kept.logits(batch)
    monkeypatch.setattr(parameters, "KEEP_BYTES", 0)
    fresh = make_engine()
    np.testing.assert_array_equal(fresh.logits(batch), expected)
    matrices = [each.model.parameters.matrix(0, "q_proj") for each in (kept, kept, fresh, fresh)]
    assert matrices[0] is matrices[1] and matrices[2] is not matrices[3]


@pytest.mark.parametrize("rnd", [EXACT, BF16])
def test_a_decoder_gives_the_logits_of_the_whole_sequence(
    rnd: Any, make_engine: Engines, make_batch: Batches
) -> None:
    engine = make_engine(rnd=rnd)
    batch = make_batch(61, rows=((20,),))
    expected = engine.logits(batch)[0]
    ids = batch.input_ids[0, :20].tolist()
    decoder = engine.start_decoding(20)
    done = 0
    for count in (7, 1, 1, 8, 3):
        logits = decoder.extend(ids[done : done + count])
        done += count
        assert logits.shape == (61,) and logits.dtype == np.float32
        assert rel_l2(logits, expected[done - 1]) < (1e-5 if rnd is EXACT else 2e-2)
    with pytest.raises(ValueError, match="do not fit"):
        decoder.extend([1])


def test_a_decoder_keeps_the_adapters_it_began_with(make_engine: Engines, make_batch: Batches) -> None:
    engine, batch = make_engine(), make_batch(61, rows=((6,),))
    before = engine.logits(batch)[0]
    decoder = engine.start_decoding(6)
    ids = batch.input_ids[0, :6].tolist()
    decoder.extend(ids[:3])
    engine.step([batch], replace(UPDATE, lr=0.5))
    assert rel_l2(decoder.extend(ids[3:]), before[5]) < 1e-5
    assert rel_l2(engine.logits(batch)[0], before) > 1e-2


def test_a_prompt_longer_than_a_prefill_piece(make_engine: Engines, make_batch: Batches) -> None:
    engine, batch = make_engine(), make_batch(61, rows=((600,),))
    logits = engine.start_decoding(600).extend(batch.input_ids[0, :600].tolist())
    assert rel_l2(logits, engine.logits(batch)[0, 599]) < 1e-5


@pytest.mark.parametrize("ids", [[], [61], [-1]])
def test_a_decoder_refuses_what_it_cannot_append(ids: list[int], make_engine: Engines) -> None:
    with pytest.raises(ValueError, match=r"fit|vocabulary"):
        make_engine().start_decoding(5).extend(ids)


def test_the_float64_engine_is_float64_throughout(make_engine: Engines, make_batch: Batches) -> None:
    engine, batch = make_engine(dtype=np.float64), make_batch(61)
    assert all(array.dtype == np.float64 for _, array in engine.capture(batch))
    assert engine.logits(batch).dtype == np.float64
    engine.step([batch], UPDATE)
    state = engine.optimizer_state()
    assert all(x.dtype == np.float64 for part in (state.exp_avg, state.exp_avg_sq) for x in part.values())


def test_the_emulation_trains_float32_master_weights(make_engine: Engines, make_batch: Batches) -> None:
    engine = make_engine(rnd=BF16)
    engine.step([make_batch(61)], replace(UPDATE, lr=1e-5))
    for tensor in engine.adapters().values():
        assert tensor.dtype == np.float32 and (tensor != round_to_bf16(tensor)).any()
