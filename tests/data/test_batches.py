"""Packing and plans: every token once an epoch, with its label and position, in the seed's order."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nf4tui.data.batches import BatchPlan, evaluation_batches, split
from nf4tui.data.conversation import Conversation
from nf4tui.data.rows import bucket_of, pack
from nf4tui.data.samples import Sample
from nf4tui.engine import IGNORE_INDEX, PADDING, Batch
from nf4tui.errors import InputError

T = 64
LENGTHS = st.lists(st.integers(2, T), min_size=1, max_size=25)


def make_samples(lengths: list[int], seed: int = 0) -> list[Sample]:
    """Samples whose first token is their number, so that every document can be told."""
    random = np.random.default_rng(seed)
    samples = []
    for index, length in enumerate(lengths):
        ids = random.integers(1000, 2000, length).astype(np.int32)
        ids[0] = index
        supervised = random.random(length) < 0.5
        supervised[-1] = True
        samples.append(Sample(ids, supervised, f"x:{index}", Conversation(())))
    return samples


def documents(batch: Batch) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, labels, positions) of each document; they must lie one after another, then padding."""
    found = []
    for b in range(batch.input_ids.shape[0]):
        row = batch.document_ids[b]
        used = int((row != PADDING).sum())
        assert (row[used:] == PADDING).all()
        assert (batch.labels[b, used:] == IGNORE_INDEX).all()
        assert (np.diff(row[:used]) >= 0).all() and (np.diff(row[:used]) <= 1).all()
        for document in np.unique(row[:used]):
            at = row == document
            found.append((batch.input_ids[b, at], batch.labels[b, at], batch.positions[b, at]))
    return found


def assert_holds_every_sample_once(batches: list[Batch], samples: list[Sample]) -> None:
    found = [document for batch in batches for document in documents(batch)]
    assert Counter(int(ids[0]) for ids, _, _ in found) == Counter(range(len(samples)))
    for ids, labels, positions in found:
        sample = samples[int(ids[0])]
        np.testing.assert_array_equal(ids, sample.ids)
        np.testing.assert_array_equal(positions, np.arange(len(ids)))
        expected = np.where(sample.supervised, sample.ids, IGNORE_INDEX)
        expected[0] = IGNORE_INDEX
        np.testing.assert_array_equal(labels, expected)


@given(
    lengths=LENGTHS,
    batch_size=st.integers(1, 4),
    grad_accum=st.integers(1, 3),
    packing=st.booleans(),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_every_token_once_with_its_label_and_position(
    lengths: list[int], batch_size: int, grad_accum: int, packing: bool, seed: int
) -> None:
    samples = make_samples(lengths)
    plan = BatchPlan(
        samples, batch_size=batch_size, grad_accum=grad_accum, seq_len=T, packing=packing, seed=seed
    )
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        batches = [batch for step in steps for batch in plan.micro_batches(step)]
        widths = {plan.width} if packing else {bucket_of(length, T) for length in lengths}
        assert {batch.input_ids.shape for batch in batches} <= {(batch_size, width) for width in widths}
        assert all(batch.tokens > 0 for batch in batches)
        assert_holds_every_sample_once(batches, samples)
    assert_holds_every_sample_once(
        list(evaluation_batches(samples, batch_size=batch_size, seq_len=T)), samples
    )


@given(lengths=LENGTHS)
@settings(max_examples=60, deadline=None)
def test_packed_rows_fit_and_no_two_rows_could_be_one(lengths: list[int]) -> None:
    rows = pack(lengths, T)
    used = sorted(sum(lengths[index] for index in row) for row in rows)
    assert used[-1] <= T
    assert len(used) < 2 or used[0] + used[1] > T
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))


def test_a_sample_longer_than_the_row_is_never_cut_by_packing() -> None:
    with pytest.raises(ValueError, match="sample 1 has 65 tokens"):
        pack([3, 65], 64)


@given(lengths=LENGTHS, seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_eight_by_one_and_one_by_eight_take_the_same_rows_in_a_step(lengths: list[int], seed: int) -> None:
    samples = make_samples(lengths)
    wide, deep = (
        BatchPlan(samples, batch_size=b, grad_accum=a, seq_len=T, packing=True, seed=seed)
        for b, a in ((8, 1), (1, 8))
    )
    assert wide.steps_per_epoch == deep.steps_per_epoch
    for step in range(1, 2 * wide.steps_per_epoch + 1):
        assert wide.step_rows(step) == deep.step_rows(step)
        supervised = [sum(b.supervised_tokens for b in plan.micro_batches(step)) for plan in (wide, deep)]
        assert supervised[0] == supervised[1]


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    samples = make_samples([T] * 40)

    def order(seed: int, epoch: int) -> list[tuple[int, ...]]:
        plan = BatchPlan(samples, batch_size=4, grad_accum=1, seq_len=T, packing=True, seed=seed)
        first = epoch * plan.steps_per_epoch
        # Asked for backwards: no step depends on the steps before it.
        steps = [plan.step_rows(step) for step in range(first + plan.steps_per_epoch, first, -1)]
        return [row for rows in reversed(steps) for row in rows]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    """Philox's words are fixed by its definition; a resumed run must not see another order."""
    plan = BatchPlan(make_samples([T] * 8), batch_size=8, grad_accum=1, seq_len=T, packing=False, seed=7)
    assert [row[0] for row in plan.step_rows(1)] == [4, 1, 6, 3, 2, 7, 5, 0]


def test_rows_are_as_wide_as_the_longest_needs_in_steps_of_64() -> None:
    def width(lengths: list[int], seq_len: int, packing: bool = False) -> int:
        plan = BatchPlan(
            make_samples(lengths), batch_size=1, grad_accum=1, seq_len=seq_len, packing=packing, seed=0
        )
        return plan.width

    assert width([10, 64], 2048) == 64
    assert width([10, 65], 2048) == 128
    assert width([10, 65], 100) == 100
    assert width([10, 65], 2048, packing=True) == 128


def test_a_split_is_fixed_by_the_seed_and_keeps_equal_samples_together() -> None:
    samples = make_samples([5] * 50)
    samples += [Sample(s.ids.copy(), s.supervised, "copy", s.record) for s in samples[:10]]
    training, validation = split(samples, 0.2, seed=3)
    assert len(training) + len(validation) == 60
    assert 12 <= len(validation) <= 13
    assert not {s.ids.tobytes() for s in training} & {s.ids.tobytes() for s in validation}
    again = split(samples, 0.2, seed=3)
    assert [s.source for s in again[1]] == [s.source for s in validation]
    assert [s.source for s in split(samples, 0.2, seed=4)[1]] != [s.source for s in validation]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_outside_zero_and_one_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        split(make_samples([5, 5]), share, 0)


def test_a_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="leaves nothing to train on"):
        split(make_samples([5]), 0.5, 0)
