"""Rows: which samples lie in each, and how wide the batches of them are.

Packing is best fit decreasing: the longest sample first, each into the fullest row that still takes it
(Johnson 1973). Documents lie one after another in a row, whole, and do not see each other (Batch).

Without packing a row holds one sample. Rows of about the same length share a batch, whose width is one of a
few, its bucket: a step for each [B, T] has to be prepared only once, and little of it is padding.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

Row = tuple[int, ...]  # sample indices, in the order in which they lie

WIDTH_STEP = 64  # a batch's T is a multiple of this, or the window


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


def width_of(longest: int, T: int) -> int:
    """The width of batches whose longest row has `longest` tokens: a multiple of 64, at most T."""
    return min(T, -(-longest // WIDTH_STEP) * WIDTH_STEP)


def bucket_of(length: int, T: int) -> int:
    """The narrowest bucket for a row: multiples of 64, from 512 on four between two powers of two, so that
    at most a fifth of a row longer than 256 is padding; T is the widest."""
    step = max(WIDTH_STEP, 1 << max(0, (length - 1).bit_length() - 3))
    return min(T, -(-length // step) * step)


def fill_buckets(rows: Sequence[Row], lengths: Sequence[int], B: int, T: int) -> list[tuple[int, list[Row]]]:
    """(width, at most B rows) of batches that hold all rows of one sample each, in as few as can be.

    A bucket's last rows that fill no batch move up to the next wider one: only the widest may fall short.
    """
    buckets: dict[int, list[Row]] = {}
    for row in rows:
        buckets.setdefault(bucket_of(lengths[row[0]], T), []).append(row)
    batches = []
    waiting: list[Row] = []
    for width in sorted(buckets):
        waiting += buckets[width]
        while len(waiting) >= B:
            batches.append((width, waiting[:B]))
            waiting = waiting[B:]
        last = width
    if waiting:
        batches.append((last, waiting))
    return batches
