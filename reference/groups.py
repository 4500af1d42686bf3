"""A batch as groups of whole documents, without its padding.

Documents are independent of each other, so a batch's loss and gradients are sums over its documents. Taking
at most MAX_TOKENS of them at a time bounds the activations that a backward keeps (at 0.5B about 3 MB a
token in float32, whatever the batch), and padding costs nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import Batch
from nf4tui.reference.attention import document_spans

MAX_TOKENS = 2048


def document_groups(batch: Batch, max_tokens: int = MAX_TOKENS) -> Iterator[tuple[Batch, NDArray[Any]]]:
    """Yields batches [1, n] of documents one after the other, n <= max_tokens unless one document is longer,
    and for each the places [n] of its tokens in the flattened [B * T] of `batch`."""
    length = batch.input_ids.shape[1]
    group: list[NDArray[Any]] = []
    for row, start, stop in document_spans(batch.document_ids):
        if group and sum(map(len, group)) + stop - start > max_tokens:
            yield _gather(batch, group)
            group = []
        group.append(np.arange(row * length + start, row * length + stop))
    if group:
        yield _gather(batch, group)


def _gather(batch: Batch, documents: list[NDArray[Any]]) -> tuple[Batch, NDArray[Any]]:
    places = np.concatenate(documents)
    numbers = np.repeat(np.arange(len(documents), dtype=np.int32), [len(d) for d in documents])
    part = Batch(
        batch.input_ids.reshape(1, -1)[:, places],
        batch.labels.reshape(1, -1)[:, places],
        batch.positions.reshape(1, -1)[:, places],
        numbers[None],
    )
    return part, places
