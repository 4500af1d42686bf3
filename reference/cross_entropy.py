"""LM head and cross-entropy in one op: the full logits [B * T, V] never exist.

    loss = sum over supervised rows of (logsumexp(logits) - logits[target]),  logits = h E^T
    dh   = (softmax(logits) - onehot(target)) E / denominator

Only supervised rows are computed. The vocabulary is taken in chunks: a first pass forms the running
maximum and sum, a second one recomputes the logits for the gradient. The loss is summed in float64: with
thousands of terms a float32 sum would lose the digits that a comparison needs.

Memory: one chunk of the head in the work dtype, [rows, chunk] logits; at most MAX_LOGITS values each.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import IGNORE_INDEX
from nf4tui.models.weights import DenseTensor
from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]

MAX_LOGITS = 2**24


def cross_entropy_forward(
    h: Array, head: DenseTensor, targets: NDArray[Any], rnd: Rounding = EXACT
) -> tuple[Array, Array]:
    """h [N, D], head [V, D], targets [N] -> loss a row [N] float64 (0 where ignored), lse [N]."""
    rows = np.flatnonzero(targets != IGNORE_INDEX)
    losses = np.zeros(len(h), dtype=np.float64)
    lse = np.zeros(len(h), dtype=h.dtype)
    if len(rows) == 0:
        return losses, lse
    chosen, wanted = h[rows], targets[rows]
    highest = np.full(len(rows), -np.inf, dtype=h.dtype)
    total = np.zeros(len(rows), dtype=np.float64)
    target_logit = np.zeros(len(rows), dtype=h.dtype)
    for start, logits in _logit_chunks(chosen, head, rnd):
        inside = np.flatnonzero((wanted >= start) & (wanted < start + logits.shape[1]))
        target_logit[inside] = logits[inside, wanted[inside] - start]
        peak = np.maximum(highest, logits.max(axis=1))
        total *= np.exp(highest - peak)
        np.subtract(logits, peak[:, None], out=logits)
        total += np.exp(logits, out=logits).sum(axis=1, dtype=np.float64)
        highest = peak
    log_sum = highest + np.log(total)
    losses[rows] = log_sum - target_logit
    lse[rows] = log_sum
    return losses, lse


def cross_entropy_backward(
    h: Array,
    head: DenseTensor,
    targets: NDArray[Any],
    lse: Array,
    denominator: float,
    rnd: Rounding = EXACT,
) -> Array:
    """h [N, D] and the forward's lse [N] -> dh [N, D] of (sum of losses) / denominator."""
    rows = np.flatnonzero(targets != IGNORE_INDEX)
    dh = np.zeros_like(h)
    if len(rows) == 0:
        return dh
    chosen, part = h[rows], np.zeros((len(rows), h.shape[1]), dtype=h.dtype)
    for start, d in _gradient_chunks(chosen, head, targets[rows], lse[rows], denominator, rnd):
        part += d @ head_rows(head, start, start + d.shape[1], h.dtype, rnd)
    dh[rows] = rnd(part, Point.ACTIVATION_GRAD)
    return dh


def logits_gradient(
    h: Array,
    head: DenseTensor,
    targets: NDArray[Any],
    lse: Array,
    denominator: float,
    rnd: Rounding = EXACT,
) -> Array:
    """The gradient [N, V] of the logits, whole: for comparison only."""
    rows = np.flatnonzero(targets != IGNORE_INDEX)
    out = np.zeros((len(h), head.data.shape[0]), dtype=h.dtype)
    for start, d in _gradient_chunks(h[rows], head, targets[rows], lse[rows], denominator, rnd):
        out[rows, start : start + d.shape[1]] = d
    return out


def head_rows(head: DenseTensor, start: int, stop: int, dtype: Any, rnd: Rounding) -> Array:
    """Rows start to stop of the head [V, D] as an operand in `dtype`."""
    return rnd(head.float32(slice(start, stop)), Point.HEAD).astype(dtype, copy=False)


def head_logits(h: Array, head: DenseTensor, rnd: Rounding = EXACT) -> Array:
    """h [N, D] -> logits [N, V], whole: for generation and comparison only."""
    out = np.empty((len(h), head.data.shape[0]), dtype=h.dtype)
    for start, logits in _logit_chunks(h, head, rnd):
        out[:, start : start + logits.shape[1]] = logits
    return out


def _gradient_chunks(
    h: Array, head: DenseTensor, wanted: NDArray[Any], lse: Array, denominator: float, rnd: Rounding
) -> Iterator[tuple[int, Array]]:
    """Supervised rows only -> (first column, chunk of (softmax - onehot) / denominator)."""
    for start, logits in _logit_chunks(h, head, rnd):
        np.subtract(logits, lse[:, None], out=logits)
        d = np.exp(logits, out=logits)
        inside = np.flatnonzero((wanted >= start) & (wanted < start + d.shape[1]))
        d[inside, wanted[inside] - start] -= 1
        d *= d.dtype.type(1 / denominator)
        yield start, rnd(d, Point.LOGITS_GRAD)


def _logit_chunks(h: Array, head: DenseTensor, rnd: Rounding) -> Iterator[tuple[int, Array]]:
    vocabulary, width = head.data.shape
    step = min(vocabulary, max(256, MAX_LOGITS // max(len(h), width)))
    for start in range(0, vocabulary, step):
        stop = min(start + step, vocabulary)
        yield start, rnd(h @ head_rows(head, start, stop, h.dtype, rnd).T, Point.LOGITS)
