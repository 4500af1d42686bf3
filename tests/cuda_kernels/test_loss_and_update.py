"""Softmax, embedding, cross-entropy and AdamW against the reference."""

from typing import Any

import numpy as np
import pytest

from nf4tui.cuda_kernels import adamw as kernels
from nf4tui.cuda_kernels.cross_entropy import accumulate, cross_entropy_loss, logits_gradient
from nf4tui.cuda_kernels.embedding import embedding_forward
from nf4tui.cuda_kernels.softmax import softmax_backward, softmax_forward
from nf4tui.engine import IGNORE_INDEX, Update
from nf4tui.reference import adamw, softmax
from nf4tui.reference.reductions import clip_coefficient, global_norm, rel_l2

FP32 = 2.0**-24


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 31), (2, 32), (5, 33), (2, 77), (1, 1000)])
def test_softmax_of_any_length(lab: Any, rows: int, width: int) -> None:
    random = np.random.default_rng(width)
    x = (2 * random.standard_normal((rows, width))).astype(np.float32)
    x[0, width // 2 :] = -np.inf
    if rows > 2:
        x[2] = -np.inf
    dy = random.standard_normal((rows, width)).astype(np.float32)
    y, dx = lab.output(rows * width, np.float32), lab.output(rows * width, np.float32)
    softmax_forward(lab.device, y[1], lab.put(x), rows, width)
    found = lab.read(y).reshape(rows, width)
    exact = softmax.softmax_forward(x.astype(np.float64))
    assert rel_l2(found, exact) <= 4 * np.sqrt(width) * FP32
    softmax_backward(lab.device, dx[1], lab.put(dy), y[1], rows, width)
    exact = softmax.softmax_backward(dy.astype(np.float64), found.astype(np.float64))
    assert rel_l2(lab.read(dx).reshape(rows, width), exact) <= 8 * np.sqrt(width) * FP32


def test_embedding_copies_bits(lab: Any) -> None:
    random = np.random.default_rng(0)
    table = random.integers(0, 2**16, (50, 40)).astype(np.uint16)
    ids = np.array([0, 49, 7, 7], np.int32)
    x = lab.output(4 * 40, np.uint16)
    embedding_forward(lab.device, x[1], lab.put(table, np.uint16), lab.put(ids, np.int32), 37, 40)
    found = lab.read(x).reshape(4, 40)
    np.testing.assert_array_equal(found[:, :37], table[ids][:, :37])
    assert (found[:, 37:] == 0xFFFF).all()


@pytest.mark.parametrize(("vocabulary", "chunk"), [(1, 8), (77, 32), (300, 128), (1037, 512)])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_cross_entropy_in_chunks(lab: Any, bf16: Any, vocabulary: int, chunk: int, size: float) -> None:
    random = np.random.default_rng(vocabulary)
    rows = 6
    logits = (size * random.standard_normal((rows, vocabulary))).astype(np.float32)
    targets = random.integers(0, vocabulary, rows).astype(np.int32)
    targets[[1, 5]] = IGNORE_INDEX
    state = tuple(lab.output(rows, np.float32) for _ in range(4))
    device_targets = lab.put(targets, np.int32)
    chunks = []
    for first in range(0, vocabulary, chunk):
        part = np.full((rows, chunk), np.nan, np.float32)
        width = min(chunk, vocabulary - first)
        part[:, :width] = logits[:, first : first + width]
        chunks.append((first, width, lab.put(part)))
        accumulate(lab.device, tuple(s[1] for s in state), chunks[-1][2], device_targets, first, width, chunk)
    losses, lse = lab.output(rows, np.float32), lab.output(rows, np.float32)
    cross_entropy_loss(lab.device, losses[1], lse[1], tuple(s[1] for s in state), device_targets)
    wide = logits.astype(np.float64)
    right_lse = wide.max(1) + np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1))
    seen = targets != IGNORE_INDEX
    right = np.where(seen, right_lse - wide[np.arange(rows), np.maximum(targets, 0)], 0)
    np.testing.assert_allclose(lab.read(losses), right, rtol=1e-6, atol=4e-6 * size)
    denominator = 3.0
    onehot = np.zeros_like(wide)
    onehot[np.arange(rows)[seen], targets[seen]] = 1
    gradient = np.where(seen[:, None], np.exp(wide - right_lse[:, None]) - onehot, 0) / denominator
    for first, width, part in chunks:
        d = lab.output(rows * chunk, np.uint16)
        logits_gradient(
            lab.device, d[1], part, lse[1], device_targets, lab.put([denominator]), first, width, chunk
        )
        found = lab.read_bf16(d).reshape(rows, chunk)
        exact = gradient[:, first : first + width]
        assert rel_l2(found[:, :width], exact) <= 1.3 * rel_l2(bf16(exact), exact) + 1e-4
        assert np.isnan(found[:, width:]).all()


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6])
def test_adamw(lab: Any, clip: float, begun: bool) -> None:
    random = np.random.default_rng(1)
    size = 1500
    p, m, v = (random.standard_normal(size).astype(np.float32) for _ in range(3))
    v = np.square(v)
    if not begun:  # the first steps show 1 - beta alone: old moments would drown its error
        m, v = np.zeros_like(m), np.zeros_like(v)
    weights, first, second = lab.put(p), lab.put(m), lab.put(v)
    results = lab.output(kernels.RESULTS, np.float64)
    sums, bad = lab.output(kernels.BLOCKS, np.float64), lab.output(kernels.BLOCKS, np.int32)
    for t in (1, 2, 3):
        update = Update(step=t, lr=0.01, weight_decay=0.1, clip=clip)
        g = random.standard_normal(size).astype(np.float32)
        arrays = lab.put(g), lab.put(kernels.settings_of(update, t))
        lab.device.fill(results[1], 0)
        kernels.gradient_norm(lab.device, results[1], sums[1], bad[1], *arrays)
        kernels.adamw_update(lab.device, weights, first, second, arrays[0], results[1], arrays[1])
        right_norm = global_norm([g])
        assert lab.read(results)[kernels.NORM] == pytest.approx(right_norm, rel=1e-12)
        assert lab.read(results)[kernels.NONFINITE] == 0
        adamw.adamw_update(p, g * np.float32(clip_coefficient(right_norm, clip)), m, v, t, update)
        for found, right in ((weights, p), (first, m), (second, v)):
            assert rel_l2(lab.device.download(found), right) <= 8 * FP32 * t


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_what_is_not_finite_is_counted_and_nothing_is_changed(lab: Any, value: float, where: str) -> None:
    g, losses = np.ones(700, np.float32), np.ones(300, np.float32)
    if where == "gradient":
        g[[3, 699]] = value
    else:
        losses[[7, 299]] = value
    before = np.arange(700, dtype=np.float32)
    arrays = [lab.put(before) for _ in range(3)]
    results = lab.output(kernels.RESULTS, np.float64)
    sums, bad = lab.output(kernels.BLOCKS, np.float64), lab.output(kernels.BLOCKS, np.int32)
    settings = lab.put(kernels.settings_of(Update(step=1, lr=0.1, weight_decay=0.1, clip=1.0), 1))
    gradient = lab.put(g)
    lab.device.fill(results[1], 0)
    kernels.add_losses(lab.device, results[1], lab.put(losses))
    kernels.gradient_norm(lab.device, results[1], sums[1], bad[1], gradient, settings)
    kernels.adamw_update(lab.device, *arrays, gradient, results[1], settings)
    assert lab.read(results)[kernels.NONFINITE] == (2 if where == "gradient" else 1)
    for array in arrays:
        np.testing.assert_array_equal(lab.device.download(array), before)


def test_losses_are_summed_in_float64_onto_what_is_there(lab: Any) -> None:
    losses = np.random.default_rng(2).random(1000, np.float32)
    results = lab.output(kernels.RESULTS, np.float64)
    lab.device.fill(results[1], 0)
    for _ in range(2):
        kernels.add_losses(lab.device, results[1], lab.put(losses))
    right = 2 * losses.sum(dtype=np.float64)
    assert lab.read(results)[kernels.LOSS] == pytest.approx(right, rel=1e-14)
