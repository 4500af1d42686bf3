"""Flash attention against the reference: any length, packed documents, padding, grouped heads."""

from typing import Any

import numpy as np
import pytest

from nf4tui.cuda_kernels.attention import attention_forward
from nf4tui.cuda_kernels.attention_backward import attention_backward
from nf4tui.engine import PADDING
from nf4tui.reference import attention
from nf4tui.reference.reductions import rel_l2
from nf4tui.reference.rounding import BF16

# (T, documents' lengths a row, heads, kv heads, width)
CASES = [
    (1, [[1]], 1, 1, 16),
    (33, [[33]], 2, 1, 32),
    (77, [[10, 40, 20]], 2, 2, 16),
    (64, [[64], [30, 3]], 1, 1, 64),
    (130, [[1, 63, 65]], 2, 1, 16),
    (70, [[0], [70]], 1, 1, 128),
]


def documents_of(T: int, rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """document_ids [B, T] and starts [B, T]; what no document covers is padding."""
    ids = np.full((len(rows), T), PADDING, np.int32)
    starts = np.full((len(rows), T), T, np.int32)
    for row, lengths in enumerate(rows):
        at = 0
        for number, length in enumerate(lengths):
            ids[row, at : at + length], starts[row, at : at + length] = number, at
            at += length
    return ids, starts


def assert_legal(found: Any, exact: Any, emulated: Any) -> None:
    error, legal = rel_l2(found, exact), rel_l2(emulated, exact)
    assert error <= 1.3 * legal + 1e-4, f"relL2 {error:.2e} where bfloat16 costs {legal:.2e}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"T{case[0]}-d{case[4]}-{case[1]}")
def test_forward(lab: Any, bf16: Any, case: Any) -> None:
    T, rows, heads, kv_heads, width = case
    random = np.random.default_rng(T)
    B = len(rows)
    q = bf16(2 * random.standard_normal((B, T, heads, width)))
    k, v = (bf16(random.standard_normal((B, T, kv_heads, width))) for _ in range(2))
    ids, starts = documents_of(T, rows)
    spans = attention.document_spans(ids)
    exact, exact_lse = attention.attention_forward(*(a.astype(np.float64) for a in (q, k, v)), spans)
    emulated, _ = attention.attention_forward(q, k, v, spans, BF16)
    context, lse = lab.output(q.size, np.uint16), lab.output(B * T * heads, np.float32)
    arrays = [lab.put_bf16(a) for a in (q, k, v)]
    attention_forward(
        lab.device, context[1], lse[1], *arrays, lab.put(starts, np.int32), (B, T), heads, kv_heads, width
    )
    found = lab.read_bf16(context).reshape(q.shape)
    assert_legal(found, exact, emulated)
    assert not found[ids == PADDING].any()
    np.testing.assert_allclose(lab.read(lse).reshape(B, T, heads), exact_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"T{case[0]}-d{case[4]}-{case[1]}")
def test_backward(lab: Any, bf16: Any, case: Any) -> None:
    T, rows, heads, kv_heads, width = case
    random = np.random.default_rng(T + 1)
    B = len(rows)
    q = bf16(2 * random.standard_normal((B, T, heads, width)))
    k, v = (bf16(random.standard_normal((B, T, kv_heads, width))) for _ in range(2))
    do = bf16(random.standard_normal(q.shape))
    ids, starts = documents_of(T, rows)
    spans = attention.document_spans(ids)
    context, lse = attention.attention_forward(q, k, v, spans, BF16)
    wide = [a.astype(np.float64) for a in (do, q, k, v, context, lse)]
    exact = attention.attention_backward(*wide, spans)
    emulated = attention.attention_backward(do, q, k, v, context, lse, spans, BF16)
    outputs = [lab.output(a.size, np.uint16) for a in (q, k, v)]
    delta = lab.output(lse.size, np.float32)
    arrays = [lab.put_bf16(a) for a in (do, q, k, v, context)]
    attention_backward(
        lab.device,
        *(output[1] for output in outputs),
        delta[1],
        *arrays,
        lab.put(lse),
        lab.put(starts, np.int32),
        (B, T),
        heads,
        kv_heads,
        width,
    )
    for output, right, legal in zip(outputs, exact, emulated, strict=True):
        found = lab.read_bf16(output).reshape(right.shape)
        assert_legal(found, right, legal)
        assert not found[ids == PADDING].any()
