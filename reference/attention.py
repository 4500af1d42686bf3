"""Causal grouped-query attention over packed documents (GQA: Ainslie et al. 2023, arXiv 2305.13245).

    s_ij = q_i . k_j / sqrt(d) for j <= i within one document;   p = softmax_j(s);   context_i = sum_j p_ij v_j
Query head h reads key/value head h // (H / K). Padding sees nothing: its context and lse are 0.

The backward recomputes p = exp(s - lse) from the stored log-sum-exp (FlashAttention, Dao et al. 2022,
arXiv 2205.14135):
    dv = p^T do;   dp = do v^T;   ds = p * (dp - rowsum(do * context));   dq = ds k / sqrt(d);   dk = ds^T q / sqrt(d)

Memory and time: each document is taken alone, and its queries in chunks that see no key after the chunk's
end, so a packed row costs half the sum of its documents' squares and no [T, T] array exists. A chunk has
at most MAX_SCORES scores and MAX_QUERIES queries.

A row's exp(s - max) are summed in float64: thousands of terms in float32 would cost lse its last digits,
and the backward exponentiates lse. Queries are scaled before the product, in the work precision and not
rounded: the same number as scaled scores, for a pass over [n, d] instead of one over [n, n].
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.engine import PADDING
from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]
Span = tuple[int, int, int]

MAX_SCORES = 2**22
MAX_QUERIES = 256


def document_spans(document_ids: NDArray[Any]) -> list[Span]:
    """document_ids [B, T] -> (row, start, stop) of every document; padding is left out."""
    spans = []
    for row, ids in enumerate(document_ids):
        cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
        spans += [
            (row, start, stop) for start, stop in pairwise(cuts) if start < stop and ids[start] != PADDING
        ]
    return spans


def attention_forward(
    q: Array, k: Array, v: Array, spans: list[Span], rnd: Rounding = EXACT
) -> tuple[Array, Array]:
    """q [B, T, H, d], k and v [B, T, K, d], each span one document -> context [B, T, H, d], lse [B, T, H]."""
    heads, kv_heads = q.shape[2], k.shape[2]
    context = np.zeros_like(q)
    lse = np.zeros(q.shape[:3], dtype=q.dtype)
    future = _future(spans, q.dtype)
    for row, start, stop in spans:
        at = np.s_[row, start:stop]
        keys, values = _by_kv_head(k[at]), _by_kv_head(v[at])
        for first, last in _chunks(stop - start, heads):
            part = np.s_[row, start + first : start + last]
            queries = _by_group(q[part], kv_heads)
            out, log_sum = attend(queries, keys[:, :last], values[:, :last], future, rnd)
            context[part] = _from_group(out)
            lse[part] = log_sum.reshape(heads, -1).T
    return rnd(context, Point.CONTEXT), rnd(lse, Point.LSE)


def attend(
    queries: Array, keys: Array, values: Array, future: Array, rnd: Rounding = EXACT
) -> tuple[Array, Array]:
    """The last c queries of one document's first n positions against the keys of all n.

    queries [K, G, c, d], keys and values [K, n, d], future as future_mask gives it, for at least c
    -> context [K, G, c, d], lse [K, G, c]."""
    scores = _causal_scores(queries, keys, future)
    highest = scores.max(axis=-1, keepdims=True)
    scores -= highest
    p = np.exp(scores, out=scores)
    total = p.sum(axis=-1, keepdims=True, dtype=np.float64).astype(p.dtype, copy=False)
    groups = p.shape[1] * p.shape[2]
    p = rnd(p, Point.ATTENTION_P)
    out = (p.reshape(len(p), groups, -1) @ values).reshape(queries.shape)
    out /= total
    return out, (highest + np.log(total))[..., 0]


def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    context: Array,
    lse: Array,
    spans: list[Span],
    rnd: Rounding = EXACT,
) -> tuple[Array, Array, Array]:
    """do and the forward's tensors -> dq [B, T, H, d], dk and dv [B, T, K, d]."""
    heads, kv_heads = q.shape[2], k.shape[2]
    scale = q.dtype.type(1 / math.sqrt(q.shape[3]))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    future = _future(spans, q.dtype)
    for row, start, stop in spans:
        at = np.s_[row, start:stop]
        keys, values = _by_kv_head(k[at]), _by_kv_head(v[at])
        dkeys, dvalues = np.zeros_like(keys), np.zeros_like(values)
        for first, last in _chunks(stop - start, heads):
            part = np.s_[row, start + first : start + last]
            queries, douts = _by_group(q[part], kv_heads), _by_group(do[part], kv_heads)
            flat = (kv_heads, -1, q.shape[3])
            along = np.einsum("thd,thd->th", do[part], context[part])
            scores = _causal_scores(queries, keys[:, :last], future)
            scores -= _rows_by_group(lse[part], kv_heads)
            p = np.exp(scores, out=scores).reshape(kv_heads, -1, last)
            dvalues[:, :last] += rnd(p, Point.ATTENTION_P).swapaxes(1, 2) @ douts.reshape(flat)
            ds = douts.reshape(flat) @ values[:, :last].swapaxes(1, 2)
            ds -= _rows_by_group(along, kv_heads).reshape(kv_heads, -1, 1)
            ds *= p
            ds = rnd(ds, Point.ATTENTION_DS)
            dq[part] = _from_group((ds @ keys[:, :last]).reshape(queries.shape)) * scale
            dkeys[:, :last] += ds.swapaxes(1, 2) @ queries.reshape(flat)
        dk[at] = dkeys.swapaxes(0, 1) * scale
        dv[at] = dvalues.swapaxes(0, 1)
    return rnd(dq, Point.ACTIVATION_GRAD), rnd(dk, Point.ACTIVATION_GRAD), rnd(dv, Point.ACTIVATION_GRAD)


def future_mask(count: int, dtype: DTypeLike) -> Array:
    """[count, count]: -inf above the diagonal, where a query would see a later key; else 0."""
    mask: Array = np.triu(np.full((count, count), -np.inf, dtype=dtype), k=1)
    return mask


def _future(spans: list[Span], dtype: DTypeLike) -> Array:
    """The mask of the largest chunk of any document: smaller chunks use its corner."""
    longest = max((stop - start for _, start, stop in spans), default=0)
    return future_mask(min(longest, MAX_QUERIES), dtype)


def _causal_scores(queries: Array, keys: Array, future: Array) -> Array:
    """queries [K, G, c, d], keys [K, n, d] -> scores [K, G, c, n], -inf where masked."""
    kv_heads, group, count, width = queries.shape
    scaled = queries * queries.dtype.type(1 / math.sqrt(width))
    products = scaled.reshape(kv_heads, group * count, width) @ keys.swapaxes(1, 2)
    scores: Array = products.reshape(kv_heads, group, count, -1)
    if count > 1:
        scores[..., -count:] += future[:count, :count]
    return scores


def _chunks(length: int, heads: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most MAX_QUERIES queries that make at most MAX_SCORES scores."""
    step = max(1, min(MAX_QUERIES, MAX_SCORES // (heads * length)))
    for first in range(0, length, step):
        yield first, min(first + step, length)


def _by_kv_head(x: Array) -> Array:
    """[n, K, d] -> [K, n, d], contiguous for the matrix products."""
    return np.ascontiguousarray(x.swapaxes(0, 1))


def _by_group(x: Array, kv_heads: int) -> Array:
    """[n, H, d] -> [K, G, n, d]."""
    count, heads, width = x.shape
    split = x.reshape(count, kv_heads, heads // kv_heads, width)
    return np.ascontiguousarray(split.transpose(1, 2, 0, 3))


def _from_group(x: Array) -> Array:
    """[K, G, n, d] -> [n, H, d]."""
    kv_heads, group, count, width = x.shape
    return x.transpose(2, 0, 1, 3).reshape(count, kv_heads * group, width)


def _rows_by_group(x: Array, kv_heads: int) -> Array:
    """[n, H] -> [K, G, n, 1]."""
    return np.ascontiguousarray(x.T).reshape(kv_heads, -1, len(x), 1)
