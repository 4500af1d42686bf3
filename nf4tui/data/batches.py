"""Packing samples into rows, and rows into the batches of every step.

Packing is best fit decreasing: the longest sample first, each into the fullest row that still takes it
(Johnson 1973). Documents lie one after another in a row, whole, and do not see each other (Batch).

The order is a pure function of (seed, epoch): every row once an epoch, sorted by the raw 64-bit words of
NumPy's Philox, whose bit stream is fixed (Generator.permutation may change between NumPy versions).
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nf4tui.data.samples import Sample
from nf4tui.engine import IGNORE_INDEX, PADDING, Batch
from nf4tui.errors import InputError

Row = tuple[int, ...]  # sample indices, in the order in which they lie

WIDTH_STEP = 64  # a plan's T is a multiple of this, or the window


def pack(lengths: Sequence[int], T: int, packing: bool = True) -> list[Row]:
    """Rows of at most T tokens that hold every sample once; without packing, one sample a row.
    Raises ValueError if a length is not in 1..T."""
    for index, length in enumerate(lengths):
        if not 1 <= length <= T:
            raise ValueError(f"sample {index} has {length} tokens, but a row holds 1 to {T}")
    if not packing:
        return [(index,) for index in range(len(lengths))]
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        slot = bisect_left(free, (lengths[index], -1))
        if slot == len(free):
            left, row = T, len(rows)
            rows.append([])
        else:
            left, row = free.pop(slot)
        rows[row].append(index)
        if left > lengths[index]:
            insort(free, (left - lengths[index], row))
    return [tuple(row) for row in rows]


class BatchPlan:
    """Which tokens every step of a run sees. Steps count from 1 and run on over the epochs.

    width: T of all batches: the longest row rounded up to a multiple of 64, at most seq_len.
    A step takes batch_size * grad_accum rows; in an epoch's last step the rows missing are padding, and
    micro-batches of nothing but padding are left out.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        batch_size: int,
        grad_accum: int,
        seq_len: int,
        packing: bool,
        seed: int,
    ) -> None:
        if not samples or batch_size < 1 or grad_accum < 1:
            raise ValueError("a plan needs samples, and sizes of at least 1")
        self._samples = samples
        self._batch_size = batch_size
        self._grad_accum = grad_accum
        self._seed = seed
        self.rows = pack([len(sample.ids) for sample in samples], seq_len, packing)
        self.width = _width(samples, self.rows, seq_len)
        self.steps_per_epoch = -(-len(self.rows) // (batch_size * grad_accum))

    def epoch_of(self, step: int) -> int:
        """The 0-based epoch of a 1-based step."""
        return (step - 1) // self.steps_per_epoch

    def step_rows(self, step: int) -> list[Row]:
        """The rows of a step: fewer than batch_size * grad_accum in an epoch's last step only."""
        if step < 1:
            raise ValueError(f"steps count from 1; got {step}")
        epoch, index = divmod(step - 1, self.steps_per_epoch)
        order = _order(self._seed, epoch, len(self.rows))
        size = self._batch_size * self._grad_accum
        return [self.rows[row] for row in order[index * size : (index + 1) * size]]

    def micro_batches(self, step: int) -> list[Batch]:
        """At most grad_accum batches [batch_size, width], at least one."""
        rows = self.step_rows(step)
        size = self._batch_size
        return [
            make_batch(self._samples, rows[first : first + size], size, self.width)
            for first in range(0, len(rows), size)
        ]


def evaluation_batches(samples: Sequence[Sample], *, batch_size: int, seq_len: int) -> Iterator[Batch]:
    """Every sample once, packed, in batches of one shape [batch_size, T]."""
    rows = pack([len(sample.ids) for sample in samples], seq_len)
    width = _width(samples, rows, seq_len)
    for first in range(0, len(rows), batch_size):
        yield make_batch(samples, rows[first : first + batch_size], batch_size, width)


def make_batch(samples: Sequence[Sample], rows: Sequence[Row], B: int, T: int) -> Batch:
    """A [B, T] batch of the given rows; what is missing is padding."""
    input_ids = np.zeros((B, T), np.int32)
    labels = np.full((B, T), IGNORE_INDEX, np.int32)
    positions = np.zeros((B, T), np.int32)
    document_ids = np.full((B, T), PADDING, np.int32)
    for b, row in enumerate(rows):
        start = 0
        for document, index in enumerate(row):
            sample = samples[index]
            end = start + len(sample.ids)
            input_ids[b, start:end] = sample.ids
            labels[b, start:end] = np.where(sample.supervised, sample.ids, IGNORE_INDEX)
            labels[b, start] = IGNORE_INDEX
            positions[b, start:end] = np.arange(end - start)
            document_ids[b, start:end] = document
            start = end
    return Batch(input_ids, labels, positions, document_ids)


def split(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(training, validation) samples, each in their order: `share` of them, chosen by a hash of the seed and
    the tokens, so that equal samples fall on one side. Raises InputError if a side would be empty."""
    if not 0 < share < 1:
        raise InputError(f"--eval-split {share}: must lie between 0 and 1, both excluded")
    keys = [hashlib.sha256(f"{seed}:".encode() + sample.ids.tobytes()).digest() for sample in samples]
    wanted = max(1, round(share * len(samples)))
    last = sorted(keys)[min(wanted, len(samples)) - 1]
    training = [sample for sample, key in zip(samples, keys, strict=True) if key > last]
    validation = [sample for sample, key in zip(samples, keys, strict=True) if key <= last]
    if not training:
        raise InputError(
            f"--eval-split {share}: leaves nothing to train on of {len(samples)} samples;"
            " lower it, or name a file with --eval-data"
        )
    return training, validation


def _width(samples: Sequence[Sample], rows: Sequence[Row], seq_len: int) -> int:
    longest = max((sum(len(samples[index].ids) for index in row) for row in rows), default=1)
    return min(seq_len, -(-longest // WIDTH_STEP) * WIDTH_STEP)


def _order(seed: int, epoch: int, count: int) -> NDArray[np.intp]:
    """A permutation of `count` rows."""
    words = np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)).random_raw(count)
    return np.argsort(words, kind="stable")
