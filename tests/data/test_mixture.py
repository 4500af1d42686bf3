"""Weights of data files, and rows that share a bucket."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nf4tui.data.batches import BatchPlan
from nf4tui.data.mixture import Mixture, check_weights
from nf4tui.data.rows import bucket_of, fill_buckets
from nf4tui.data.samples import Sample
from nf4tui.engine import PADDING
from nf4tui.errors import InputError


def samples_of(lengths: list[int]) -> list[Sample]:
    made = []
    for index, length in enumerate(lengths):
        ids = np.full(length, index, np.int32)
        made.append(Sample(ids, np.arange(length) > 0, f"x:{index + 1}"))
    return made


def test_whole_weights_repeat_a_part_that_often() -> None:
    mixture = Mixture([2, 3], [1, 3], seed=0)
    assert mixture.same_every_epoch
    assert Counter(mixture.epoch(0)) == {0: 1, 1: 1, 2: 3, 3: 3, 4: 3}
    assert mixture.epoch(0) == mixture.epoch(7)


@given(
    size=st.integers(1, 40), weight=st.sampled_from([0.25, 0.5, 0.75, 1.5, 2.2]), seed=st.integers(0, 2**63)
)
@settings(max_examples=60, deadline=None)
def test_a_fraction_goes_round_so_that_all_samples_come_equally_often(
    size: int, weight: float, seed: int
) -> None:
    mixture = Mixture([5, size], [1, weight], seed)
    counts: Counter[int] = Counter()
    epochs = 12
    for epoch in range(epochs):
        chosen = Counter(mixture.epoch(epoch))
        assert all(chosen[index] == 1 for index in range(5))
        assert max(chosen[index] for index in range(5, 5 + size)) <= int(weight) + 1
        counts.update(chosen)
    of_part = [counts[index] for index in range(5, 5 + size)]
    assert max(of_part) - min(of_part) <= 1
    assert mixture.epoch(3) == Mixture([5, size], [1, weight], seed).epoch(3)


def test_no_part_is_left_out_of_an_epoch_by_a_small_weight() -> None:
    assert len(Mixture([3], [0.01], seed=0).epoch(0)) == 1


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, 2.0, 3.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, 1e9]]
)
def test_weights_out_of_range_or_number_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match="--weights"):
        check_weights(weights, 2)


def plan_of(lengths: list[int], mixture: Mixture | None, *, packing: bool, grad_accum: int = 1) -> BatchPlan:
    return BatchPlan(
        samples_of(lengths),
        batch_size=2,
        grad_accum=grad_accum,
        seq_len=128,
        packing=packing,
        seed=5,
        mixture=mixture,
    )


@pytest.mark.parametrize("packing", [True, False])
def test_a_plan_takes_each_epoch_what_its_mixture_says(packing: bool) -> None:
    lengths = [20, 30, 40, 50, 60, 70, 80, 90, 100]
    mixture = Mixture([4, 5], [1, 0.5], seed=5)
    plan = plan_of(lengths, mixture, packing=packing, grad_accum=2)
    first = 1
    for epoch in range(6):
        last = plan.steps_in(epoch + 1)
        found = Counter(
            index for step in range(first, last + 1) for row in plan.step_rows(step) for index in row
        )
        assert found == Counter(mixture.epoch(epoch))
        assert {plan.epoch_of(step) for step in range(first, last + 1)} == {epoch}
        first = last + 1
    if packing:
        widths = {batch.input_ids.shape[1] for step in range(1, first) for batch in plan.micro_batches(step)}
        assert widths == {plan.width}


@given(lengths=st.lists(st.integers(1, 2048), min_size=1, max_size=60), B=st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_buckets_hold_every_row_once_in_as_few_batches_as_can_be(lengths: list[int], B: int) -> None:
    rows = [(index,) for index in range(len(lengths))]
    batches = fill_buckets(rows, lengths, B, 2048)
    assert sorted(row for _, held in batches for row in held) == rows
    assert len(batches) == -(-len(rows) // B)
    for width, held in batches:
        assert 1 <= len(held) <= B
        assert width == max(bucket_of(lengths[index], 2048) for (index,) in held)


def test_buckets_are_few_and_waste_little() -> None:
    widths = [bucket_of(length, 2048) for length in range(1, 2049)]
    assert all(width >= length for length, width in enumerate(widths, start=1))
    assert len(set(widths)) <= 16
    assert all(width - length <= 0.2 * width for length, width in enumerate(widths, start=1) if length > 256)
    assert bucket_of(2000, 2001) == 2001  # never wider than the window


@pytest.mark.parametrize("packing", [True, False])
def test_padding_is_counted_as_it_lies_in_the_batches(packing: bool) -> None:
    lengths = [7, 100, 30, 64, 65, 128, 3]
    plan = plan_of(lengths, None, packing=packing)
    batches = [batch for step in range(1, plan.steps_in(1) + 1) for batch in plan.micro_batches(step)]
    padding = sum(int((batch.document_ids == PADDING).sum()) for batch in batches)
    assert plan.padding_per_epoch == padding
    assert sum(batch.tokens for batch in batches) == sum(lengths)


def test_unpacked_batches_of_short_rows_are_narrow() -> None:
    plan = plan_of([10] * 8 + [120] * 2, None, packing=False)
    shapes = Counter(batch.input_ids.shape for step in range(1, 6) for batch in plan.micro_batches(step))
    assert shapes == {(2, 64): 4, (2, 128): 1}
