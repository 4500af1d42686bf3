"""The batches of every step of a run.

The order is a pure function of (seed, epoch): every row of an epoch once, shuffled.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from nf4tui.data.mixture import Mixture, shuffled
from nf4tui.data.rows import Row, fill_buckets, pack, width_of
from nf4tui.data.samples import Sample
from nf4tui.engine import IGNORE_INDEX, PADDING, Batch
from nf4tui.errors import InputError

MicroBatch = tuple[int, list[Row]]  # its width T, and at most B rows


class BatchPlan:
    """Which tokens every step of a run sees. Steps count from 1 and run on over the epochs.

    mixture: which samples an epoch takes; None: every one once.
    rows: those of the first epoch; all epochs have the same unless the mixture differs. width: the widest T.
    Packed batches all have that width; unpacked ones are as wide as their bucket (rows.py).
    A step takes batch_size * grad_accum rows; in an epoch's last step some may be missing: they are padding,
    and micro-batches of nothing but padding are left out.
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
        mixture: Mixture | None = None,
    ) -> None:
        if not samples or batch_size < 1 or grad_accum < 1:
            raise ValueError("a plan needs samples, and sizes of at least 1")
        self.packing = packing
        self._samples = samples
        self._lengths = [len(sample.ids) for sample in samples]
        self._batch_size = batch_size
        self._grad_accum = grad_accum
        self._seq_len = seq_len
        self._seed = seed
        self._mixture = mixture
        self._same = mixture is None or mixture.same_every_epoch
        self._first_steps = [1]  # of each epoch counted so far, and of the one after
        self._made: tuple[int, list[MicroBatch]] | None = None
        self.rows = self._rows_of(0)
        self.width = width_of(self._longest(self.rows), seq_len)
        self.steps_per_epoch = self._steps_of(self.rows)

    @property
    def padding_per_epoch(self) -> int:
        """Tokens of padding that the first epoch's batches hold beside the samples."""
        micro_batches = self._micro_batches_of(0)
        held = sum(self._batch_size * width for width, _ in micro_batches)
        return held - sum(self._lengths[index] for _, rows in micro_batches for row in rows for index in row)

    def steps_in(self, epochs: int) -> int:
        """Steps of the first `epochs` epochs."""
        return self._first_step(epochs) - 1

    def epoch_of(self, step: int) -> int:
        """The 0-based epoch of a 1-based step. Raises ValueError below 1."""
        if step < 1:
            raise ValueError(f"steps count from 1; got {step}")
        if self._same:
            return (step - 1) // self.steps_per_epoch
        epoch = 0
        while step >= self._first_step(epoch + 1):
            epoch += 1
        return epoch

    def step_rows(self, step: int) -> list[Row]:
        """The rows of a step: fewer than batch_size * grad_accum in an epoch's last step only, or where an
        unpacked epoch's one short batch fell."""
        return [row for _, rows in self._step(step) for row in rows]

    def micro_batches(self, step: int) -> list[Batch]:
        """At most grad_accum batches [batch_size, T], at least one."""
        return [make_batch(self._samples, rows, self._batch_size, T) for T, rows in self._step(step)]

    def _step(self, step: int) -> list[MicroBatch]:
        epoch = self.epoch_of(step)
        start = (step - self._first_step(epoch)) * self._grad_accum
        return self._micro_batches_of(epoch)[start : start + self._grad_accum]

    def _first_step(self, epoch: int) -> int:
        """The first step of an epoch."""
        if self._same:
            return 1 + epoch * self.steps_per_epoch
        while len(self._first_steps) <= epoch:
            steps = self._steps_of(self._rows_of(len(self._first_steps) - 1))
            self._first_steps.append(self._first_steps[-1] + steps)
        return self._first_steps[epoch]

    def _steps_of(self, rows: Sequence[Row]) -> int:
        micro_batches = -(-len(rows) // self._batch_size)
        return -(-micro_batches // self._grad_accum)

    def _rows_of(self, epoch: int) -> list[Row]:
        if epoch > 0 and self._same:
            return self.rows
        if self._mixture is None:
            return pack(self._lengths, self._seq_len, self.packing)
        chosen = self._mixture.epoch(epoch)
        rows = pack([self._lengths[index] for index in chosen], self._seq_len, self.packing)
        return [tuple(chosen[place] for place in row) for row in rows]

    def _micro_batches_of(self, epoch: int) -> list[MicroBatch]:
        """An epoch's micro-batches in order. The last epoch asked for is kept."""
        if self._made is None or self._made[0] != epoch:
            self._made = (epoch, self._make_micro_batches(epoch))
        return self._made[1]

    def _make_micro_batches(self, epoch: int) -> list[MicroBatch]:
        B, rows = self._batch_size, self._rows_of(epoch)
        rows = [rows[row] for row in shuffled(self._seed, epoch, len(rows))]
        if self.packing:
            return [(self.width, rows[first : first + B]) for first in range(0, len(rows), B)]
        batches = fill_buckets(rows, self._lengths, B, self._seq_len)
        # The rows' order came from the same stream: an epoch beyond any that is trained gives another one.
        order = shuffled(self._seed, epoch + 2**32, len(batches))
        return [batches[batch] for batch in order]

    def _longest(self, rows: Sequence[Row]) -> int:
        """Tokens of the longest row; of a packed mixture that differs from epoch to epoch, the window, since
        all its batches must have one width."""
        if self.packing and not self._same:
            return self._seq_len
        return max(sum(self._lengths[index] for index in row) for row in rows)


def evaluation_batches(samples: Sequence[Sample], *, batch_size: int, seq_len: int) -> Iterator[Batch]:
    """Every sample once, packed, in batches of one shape [batch_size, T]."""
    rows = pack([len(sample.ids) for sample in samples], seq_len)
    longest = max((sum(len(samples[index].ids) for index in row) for row in rows), default=1)
    width = width_of(longest, seq_len)
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
