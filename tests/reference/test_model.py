"""The whole model: derivatives, causality, packing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nf4tui.engine import IGNORE_INDEX, PADDING, Batch, Tensors
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.dropout import DropoutKey
from nf4tui.reference.engine import ReferenceEngine
from nf4tui.reference.projection import Dropout, Gradients

LORA = LoraConfig(rank=3, alpha=8.0)

Models = Callable[..., ModelWeights]
Adapters = Callable[..., Tensors]
Batches = Callable[..., Batch]

# (H, K, d, tied, LoRA): groups 1, 2, 6, 7; head sizes 64 and 128; rsLoRA, part of the targets, dropout.
CASES = [
    (2, 2, 8, True, LORA),
    (4, 2, 8, False, LoraConfig(rank=3, alpha=8.0, rslora=True)),
    (6, 1, 4, True, LoraConfig(rank=5, alpha=3.0, targets=("v_proj", "down_proj"))),
    (7, 1, 4, False, LoraConfig(rank=2, alpha=8.0, dropout=0.3)),
    (2, 1, 64, True, LORA),
    (1, 1, 128, False, LORA),
]


def _loss_and_gradients(
    engine: ReferenceEngine, batch: Batch, adapters: Gradients
) -> tuple[float, Gradients]:
    model, gradients = engine.model, dict[str, np.ndarray]()
    p = LORA.dropout if engine.lora is None else engine.lora.dropout
    places = np.arange(batch.input_ids.size)
    dropout = Dropout(DropoutKey(1, 2, 3), places, p) if p > 0 else None
    run = model.begin(batch, model.lora_operands(adapters), dropout)
    supervised = batch.supervised_tokens
    return model.loss_and_gradients(batch, run, supervised, gradients) / supervised, gradients


@pytest.mark.parametrize(("heads", "kv_heads", "width", "tied", "lora"), CASES)
def test_every_lora_gradient_is_the_derivative_of_the_loss(
    heads: int,
    kv_heads: int,
    width: int,
    tied: bool,
    lora: LoraConfig,
    make_weights: Models,
    make_adapters: Adapters,
    make_batch: Batches,
    check_gradient: Callable[..., None],
) -> None:
    weights = make_weights(heads=heads, kv_heads=kv_heads, head_dim=width, tied=tied)
    engine = ReferenceEngine(weights, lora, dtype=np.float64)
    batch = make_batch(weights.config.vocab_size)
    adapters = {k: v.astype(np.float64) for k, v in make_adapters(weights.config, lora).items()}
    _, gradients = _loss_and_gradients(engine, batch, adapters)
    names = list(lora.tensor_names(weights.config.num_hidden_layers))
    assert set(gradients) == set(names)

    def loss(*tensors: np.ndarray) -> float:
        return _loss_and_gradients(engine, batch, dict(zip(names, tensors, strict=True)))[0]

    check_gradient(loss, [adapters[name] for name in names], [gradients[name] for name in names], 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_changing_a_token_changes_no_logit_and_no_loss_term_before_it(
    dtype: type, make_weights: Models, make_adapters: Adapters, make_batch: Batches
) -> None:
    weights = make_weights()
    engine = ReferenceEngine(weights, LORA, dtype=dtype, adapters=make_adapters(weights.config, LORA))
    batch = make_batch(61, rows=((14,),))
    batch = replace(batch, labels=np.where(batch.document_ids == PADDING, IGNORE_INDEX, batch.input_ids))
    logits, losses = engine.logits(batch), _loss_terms(engine, batch)
    for t in range(1, 14):
        ids = batch.input_ids.copy()
        ids[0, t] = (ids[0, t] + 1) % 61
        changed = replace(batch, input_ids=ids, labels=np.where(batch.labels < 0, batch.labels, ids))
        moved = engine.logits(changed)
        np.testing.assert_array_equal(moved[0, :t], logits[0, :t])
        assert (moved[0, t] != logits[0, t]).any()
        terms = _loss_terms(engine, changed)
        # Position t - 1 predicts token t: its term may change, no earlier one.
        np.testing.assert_array_equal(terms[: t - 1], losses[: t - 1])
        assert terms[t - 1] != losses[t - 1]


def _loss_terms(engine: ReferenceEngine, batch: Batch) -> np.ndarray:
    model = engine.model
    run = model.begin(batch, model.lora_operands(engine.adapters()))
    return model.head_loss(model.final_hidden(batch, run), batch)[0]


def test_labels_do_not_reach_the_logits(
    make_weights: Models, make_adapters: Adapters, make_batch: Batches
) -> None:
    weights = make_weights()
    engine = ReferenceEngine(weights, LORA, adapters=make_adapters(weights.config, LORA))
    batch = make_batch(61)
    other = replace(batch, labels=np.full_like(batch.labels, 7))
    np.testing.assert_array_equal(engine.logits(batch), engine.logits(other))


def test_packed_documents_equal_each_alone_and_positions_restart(
    make_weights: Models, make_adapters: Adapters, make_batch: Batches
) -> None:
    weights = make_weights(heads=6, kv_heads=1)
    engine = ReferenceEngine(weights, LORA, dtype=np.float64, adapters=make_adapters(weights.config, LORA))
    batch = make_batch(61)
    together, total = engine.logits(batch), engine.evaluate(batch)
    losses, tokens, documents = 0.0, 0, 0
    for row in range(2):
        for number in range(batch.document_ids[row].max() + 1):
            at = np.s_[row, batch.document_ids[row] == number]
            length = batch.input_ids[at].size
            alone = Batch(
                batch.input_ids[at][None],
                batch.labels[at][None],
                np.arange(length, dtype=np.int32)[None],
                np.zeros((1, length), np.int32),
            )
            np.testing.assert_allclose(engine.logits(alone)[0], together[at], atol=1e-12)
            part = engine.evaluate(alone)
            losses, tokens, documents = losses + part.total, tokens + part.tokens, documents + 1
    assert documents == 5 and tokens == total.tokens
    assert abs(losses - total.total) < 1e-11 * total.total


def test_positions_that_do_not_restart_are_seen(make_weights: Models, make_batch: Batches) -> None:
    engine = ReferenceEngine(make_weights(), None, dtype=np.float64)
    batch = make_batch(61, rows=((6, 6),))
    # RoPE is relative: a shift of a whole document changes nothing, a stretched one does.
    shifted = replace(batch, positions=np.arange(13, dtype=np.int32)[None])
    stretched = replace(batch, positions=batch.positions * 2)
    real = batch.document_ids != PADDING
    np.testing.assert_allclose(engine.logits(shifted)[real], engine.logits(batch)[real], atol=1e-10)
    assert rel_l2(engine.logits(stretched)[real], engine.logits(batch)[real]) > 1e-2


def test_padding_changes_nothing_of_the_real_tokens(
    make_weights: Models, make_adapters: Adapters, make_batch: Batches
) -> None:
    weights = make_weights()
    engine = ReferenceEngine(weights, LORA, adapters=make_adapters(weights.config, LORA))
    batch = make_batch(61)
    real = batch.document_ids != PADDING
    other = replace(batch, input_ids=np.where(real, batch.input_ids, 5))
    np.testing.assert_array_equal(engine.logits(other)[real], engine.logits(batch)[real])
    assert engine.evaluate(other) == engine.evaluate(batch)
    assert np.isfinite(engine.logits(batch)).all()


def test_no_target_crosses_from_one_document_into_the_next(make_batch: Batches) -> None:
    batch = make_batch(61, rows=((3, 2),))
    batch = replace(batch, labels=np.where(batch.document_ids == PADDING, IGNORE_INDEX, batch.input_ids))
    ids = batch.input_ids[0]
    expected = [ids[1], ids[2], IGNORE_INDEX, ids[4], IGNORE_INDEX, IGNORE_INDEX]
    assert batch.targets[0].tolist() == expected and batch.supervised_tokens == 3
