"""Matrix products of every layout against NumPy: any size, a second pair of operands, splits."""

from typing import Any

import numpy as np
import pytest

from nf4tui.cuda_kernels.gemm import Layout, Operand, gemm
from nf4tui.reference.reductions import rel_l2

SHAPES = [(1, 8, 8, 0), (33, 70, 77, 16), (65, 31, 130, 1), (70, 40, 96, 5), (2, 64, 3, 0)]
LAYOUTS = [
    Layout(tile_m=64, tile_n=64),
    Layout(b_rows=False, tile_m=64, tile_n=32),
    Layout(a_rows=False, b_rows=False, bf16=False, tile_m=64, tile_n=64),
    Layout(a_rows=True, b_rows=True, bf16=False, tile_m=64, tile_n=32),
]
BIG = Layout(), Layout(b_rows=False), Layout(a_rows=False, b_rows=False, bf16=False)


def aligned(size: int) -> int:
    return -(-size // 8) * 8


def operand(lab: Any, values: Any, rows: bool) -> Operand:
    """`values` stored as they are, or transposed; what lies between the rows is NaN."""
    stored = np.ascontiguousarray(values if rows else values.T)
    leading = aligned(stored.shape[1])
    return Operand(lab.put_bf16(stored, leading), leading)


def check(lab: Any, bf16: Any, layout: Layout, shape: tuple[int, int, int, int], **options: Any) -> None:
    M, N, K, K2 = shape
    random = np.random.default_rng(M * N + K)
    a, b = bf16(random.standard_normal((M, K))), bf16(random.standard_normal((K, N)))
    a2, b2 = bf16(random.standard_normal((M, max(K2, 1)))), bf16(random.standard_normal((max(K2, 1), N)))
    second = (operand(lab, a2, layout.a_rows), operand(lab, b2, not layout.b_rows), K2) if K2 else None
    exact = a.astype(np.float64) @ b
    if K2:
        exact += a2.astype(np.float64) @ b2
    leading, splits = aligned(N), options.get("splits", 1)
    out = lab.output(splits * M * leading, np.uint16 if layout.bf16 else np.float32)
    operands = operand(lab, a, layout.a_rows), operand(lab, b, not layout.b_rows)
    bias = residual = None
    if layout.bf16:
        bias = random.standard_normal(N).astype(np.float32)
        residual = bf16(random.standard_normal((M, N)))
        exact = bf16((exact + bias).astype(np.float32)).astype(np.float64) + residual
        options |= {"bias": lab.put(bias), "residual": lab.put_bf16(residual, leading)}
    else:
        exact *= 0.5
        options |= {"scale": 0.5}
    gemm(lab.device, layout, Operand(out[1], leading), *operands, (M, N, K), second=second, **options)
    found = (lab.read_bf16(out) if layout.bf16 else lab.read(out)).reshape(splits, M, leading)
    assert np.isnan(found[:, :, N:]).all()
    limit = 1.3 * rel_l2(bf16(exact.astype(np.float32)), exact) + 1e-4 if layout.bf16 else 1e-6
    assert rel_l2(found[:, :, :N].sum(0), exact) <= limit


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_products_of_any_size(lab: Any, bf16: Any, layout: Layout, shape: tuple[int, int, int, int]) -> None:
    check(lab, bf16, layout, shape)


@pytest.mark.parametrize("layout", BIG, ids=str)
def test_the_large_tiles(lab: Any, bf16: Any, layout: Layout) -> None:
    check(lab, bf16, layout, (130, 136, 40, 16))


@pytest.mark.parametrize("splits", [2, 3, 7])
def test_splits_add_up(lab: Any, bf16: Any, splits: int) -> None:
    check(lab, bf16, LAYOUTS[2], (16, 40, 130, 0), splits=splits)


def test_sums_are_added_to_what_is_there(lab: Any, bf16: Any) -> None:
    a, b = bf16(np.random.default_rng(0).standard_normal((2, 8, 24)))
    out = lab.put(np.ones((8, 8), np.float32))
    layout = LAYOUTS[3]
    for _ in range(2):
        gemm(
            lab.device,
            layout,
            Operand(out, 8),
            operand(lab, a, True),
            operand(lab, b, True),
            (8, 8, 24),
            accumulate=True,
        )
    right = 1 + 2 * (a.astype(np.float64) @ b.T)
    np.testing.assert_allclose(lab.device.download(out).reshape(8, 8), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[2]], ids=str)
def test_the_bits_are_the_same_each_time(lab: Any, bf16: Any, layout: Layout) -> None:
    random = np.random.default_rng(5)
    a, b = bf16(random.standard_normal((40, 70))), bf16(random.standard_normal((70, 33)))
    found = []
    for _ in range(2):
        out = lab.output(40 * 40, np.uint16 if layout.bf16 else np.float32)
        operands = operand(lab, a, layout.a_rows), operand(lab, b, not layout.b_rows)
        gemm(lab.device, layout, Operand(out[1], 40), *operands, (40, 33, 70))
        found.append(lab.read(out).tobytes())
    assert found[0] == found[1]
