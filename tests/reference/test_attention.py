"""Attention against a dense softmax over an explicit mask, written from the definition."""

from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.bf16 import round_to_bf16
from nf4tui.engine import PADDING
from nf4tui.reference import attention
from nf4tui.reference.attention import attention_backward, attention_forward, document_spans
from nf4tui.reference.rounding import BF16
from nf4tui.reference.softmax import softmax_forward

# (H, K, d): groups 1, 2, 6, 7; head sizes 64 and 128.
SHAPES = [(2, 2, 8), (4, 2, 64), (6, 1, 8), (7, 1, 8), (14, 2, 4), (2, 1, 128)]
DOCUMENTS = np.array([[0, 0, 0, 0, 1, 2, 2, 2, PADDING], [5, 5, PADDING, PADDING, 4, 4, 4, 4, 4]])


def _inputs(heads: int, kv_heads: int, width: int, documents: np.ndarray) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sizes = (heads, kv_heads, kv_heads, heads)
    q, k, v, do = (random.standard_normal((*documents.shape, size, width)) for size in sizes)
    do[documents == PADDING] = 0
    return [q, k, v, do]


def _dense(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows, length, heads, width = q.shape
    context, lse = np.zeros_like(q), np.zeros(q.shape[:3])
    for b in range(rows):
        seen = (documents[b][:, None] == documents[b][None]) & (documents[b] != PADDING)
        seen &= np.arange(length)[:, None] >= np.arange(length)[None]
        for h in range(heads):
            kv = h // (heads // k.shape[2])
            scores = np.where(seen, q[b, :, h] @ k[b, :, kv].T / np.sqrt(width), -np.inf)
            context[b, :, h] = softmax_forward(scores) @ v[b, :, kv]
            with np.errstate(divide="ignore"):
                lse[b, :, h] = np.log(np.exp(scores).sum(axis=1))
    lse[documents == PADDING] = 0
    return context, lse


@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_packed_documents_equal_a_dense_masked_softmax(heads: int, kv_heads: int, width: int) -> None:
    q, k, v, _ = _inputs(heads, kv_heads, width, DOCUMENTS)
    context, lse = attention_forward(q, k, v, document_spans(DOCUMENTS))
    expected, expected_lse = _dense(q, k, v, DOCUMENTS)
    np.testing.assert_allclose(context, expected, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-13)
    assert (context[DOCUMENTS == PADDING] == 0).all()


@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_the_backward_is_the_derivative(
    heads: int, kv_heads: int, width: int, check_gradient: Callable[..., None]
) -> None:
    q, k, v, do = _inputs(heads, kv_heads, width, DOCUMENTS)
    spans = document_spans(DOCUMENTS)
    context, lse = attention_forward(q, k, v, spans)
    gradients = attention_backward(do, q, k, v, context, lse, spans)
    check_gradient(
        lambda *qkv: float((attention_forward(*qkv, spans)[0] * do).sum()), [q, k, v], gradients, 1e-6
    )


@pytest.mark.parametrize("queries", [1, 3, 8])
def test_chunks_of_queries_change_nothing(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = np.zeros((1, 20), dtype=np.int32)
    q, k, v, do = _inputs(6, 2, 8, documents)
    spans = document_spans(documents)
    whole = attention_forward(q, k, v, spans)
    gradients = attention_backward(do, q, k, v, *whole, spans)
    monkeypatch.setattr(attention, "MAX_QUERIES", queries)
    parts = attention_forward(q, k, v, spans)
    for mine, theirs in zip(
        (*parts, *attention_backward(do, q, k, v, *parts, spans)), (*whole, *gradients), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-13)


def test_a_memory_bound_is_kept_by_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_SCORES", 6 * 20 * 4)
    assert list(attention._chunks(20, heads=6)) == [(n, n + 4) for n in range(0, 20, 4)]


@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_large_key_biases_stay_finite_in_float32(bias: float) -> None:
    q, k, v, do = _inputs(4, 2, 64, DOCUMENTS)
    k += bias
    exact = attention_forward(q, k, v, document_spans(DOCUMENTS))
    exact_gradients = attention_backward(do, q, k, v, *exact, document_spans(DOCUMENTS))
    q, k, v, do = (x.astype(np.float32) for x in (q, k, v, do))
    single = attention_forward(q, k, v, document_spans(DOCUMENTS))
    gradients = attention_backward(do, q, k, v, *single, document_spans(DOCUMENTS))
    for mine, theirs in zip((*single, *gradients), (*exact, *exact_gradients), strict=True):
        assert mine.dtype == np.float32 and np.isfinite(mine).all()
        # Scores reach 1000, where float32 resolves 6e-5: dq and dk cancel, the rest does not.
        assert np.linalg.norm(mine - theirs) <= 2e-3 * np.linalg.norm(theirs)


def test_the_emulation_stores_bfloat16_but_keeps_the_log_sum() -> None:
    q, k, v, _ = (round_to_bf16(x.astype(np.float32)) for x in _inputs(4, 2, 64, DOCUMENTS))
    context, lse = attention_forward(q, k, v, document_spans(DOCUMENTS), BF16)
    exact, exact_lse = _dense(*(x.astype(np.float64) for x in (q, k, v)), DOCUMENTS)
    np.testing.assert_array_equal(context, round_to_bf16(context))
    error = np.linalg.norm(context - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 5e-3
    np.testing.assert_allclose(lse, exact_lse, atol=1e-5)


def test_spans_are_the_runs_of_one_document() -> None:
    expected = [(0, 0, 4), (0, 4, 5), (0, 5, 8), (1, 0, 2), (1, 4, 9)]
    assert document_spans(DOCUMENTS) == expected
