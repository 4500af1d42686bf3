"""The probe that merged models are measured on: what it takes of the samples, and its figures."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from nf4tui.data.samples import Sample
from nf4tui.data.tokenizer import load_tokenizer
from nf4tui.engine import PADDING
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.load import load_model
from nf4tui.parity.merged import PROBE_ROWS, PROBE_TOKENS, Probe, built_in_probe, probe
from nf4tui.reference.engine import ReferenceEngine

MODEL = Path(__file__).parents[2] / "sample_data/model"


def sample(length: int, supervised: Iterable[int]) -> Sample:
    mask = np.zeros(length, np.bool_)
    mask[list(supervised)] = True
    return Sample(np.arange(length, dtype=np.int32), mask, "test")


def test_the_probe_is_bounded_and_without_padding() -> None:
    batch = probe([sample(100, range(40, 100))] * 50)
    assert batch.input_ids.shape == (1, 248)  # two whole ones, and 8 rows of a third
    assert batch.supervised_tokens == PROBE_ROWS
    assert (batch.document_ids != PADDING).all()
    assert probe([sample(2000, range(1, 2000))]).supervised_tokens == PROBE_ROWS


def test_a_long_prompt_is_cut_before_what_is_learnt() -> None:
    batch = probe([sample(2000, range(1900, 2000))])
    assert batch.input_ids.shape == (1, PROBE_TOKENS - 28)
    assert batch.input_ids[0, 0] == 1900 - PROBE_TOKENS // 2
    assert batch.supervised_tokens == 100


def test_samples_with_nothing_to_learn_are_passed_over_and_nothing_else_is_refused() -> None:
    assert probe([sample(9, []), sample(7, [6])]).input_ids.shape == (1, 7)
    with pytest.raises(InputError, match="no sample has a supervised token"):
        probe([sample(9, [])])


def test_the_figures_are_those_of_the_engine() -> None:
    weights, lora = load_model(MODEL), LoraConfig(rank=2)
    adapters = {name: tensor + 0.02 for name, tensor in initial_adapters(weights.config, lora, 0).items()}
    batch = built_in_probe(load_tokenizer(MODEL))
    measured = Probe(weights, lora, adapters, batch)
    trained = ReferenceEngine(weights, lora, adapters=adapters)
    base = ReferenceEngine(weights, None)
    assert measured.trained.logits_rel_l2 == 0
    for engine, found in ((trained, measured.trained), (base, measured.measure(weights))):
        total = engine.evaluate(batch)
        assert found.loss == pytest.approx(total.total / total.tokens, rel=1e-5)
    predicting = batch.targets != -100
    there, here = base.logits(batch)[predicting], trained.logits(batch)[predicting]
    distance = np.linalg.norm(there - here) / np.linalg.norm(here)
    assert measured.measure(weights).logits_rel_l2 == pytest.approx(distance, rel=1e-4)
