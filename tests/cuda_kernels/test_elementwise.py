"""RMSNorm, RoPE, SwiGLU and NF4 against the reference."""

from typing import Any

import numpy as np
import pytest

from nf4tui.bf16 import bf16_from_float32
from nf4tui.cuda_kernels.nf4 import code_table, nf4_dequantize, nf4_quantize
from nf4tui.cuda_kernels.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.cuda_kernels.rope import rope_backward, rope_forward
from nf4tui.cuda_kernels.swiglu import swiglu_backward, swiglu_forward
from nf4tui.nf4_code import CODE, THRESHOLDS
from nf4tui.reference import nf4, rms_norm, rope, swiglu
from nf4tui.reference.reductions import rel_l2
from nf4tui.reference.rounding import BF16

TABLE = code_table(CODE, THRESHOLDS)


def assert_as_good_as_legal(got: Any, exact: Any, emulated: Any) -> None:
    """Rule 1 of the numerics contract, and no NaN."""
    error, legal = rel_l2(got, exact), rel_l2(emulated, exact)
    assert error <= 1.3 * legal + 1e-4, f"relL2 {error:.2e} where bfloat16 costs {legal:.2e}"


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 96), (5, 130), (9, 896)])
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_rms_norm(lab: Any, bf16: Any, rows: int, width: int, eps: float, size: float) -> None:
    random = np.random.default_rng(rows * width)
    x, dy, residual = (bf16(size * random.standard_normal((rows, width))) for _ in range(3))
    x[0, :] *= rows != 3  # a row of zeros
    w = (1 + 0.2 * random.standard_normal(width)).astype(np.float32)
    leading = -(-width // 8) * 8
    y, rstd = lab.output(rows * leading, np.uint16), lab.output(rows, np.float32)
    device_x, device_w = lab.put_bf16(x, leading), lab.put(w)
    rms_norm_forward(lab.device, y[1], rstd[1], device_x, device_w, rows, width, leading, eps)
    wide = [a.astype(np.float64) for a in (x, w, dy, residual)]
    exact, exact_rstd = rms_norm.rms_norm_forward(wide[0], wide[1], eps)
    emulated, emulated_rstd = rms_norm.rms_norm_forward(x, w, eps, BF16)
    found = lab.read_bf16(y).reshape(rows, leading)
    assert_as_good_as_legal(found[:, :width], exact, emulated)
    assert np.isnan(found[:, width:]).all()
    np.testing.assert_allclose(lab.read(rstd), exact_rstd, rtol=1e-6)
    dx = lab.output(rows * leading, np.uint16)
    arrays = lab.put_bf16(dy, leading), device_x, device_w, rstd[1], lab.put_bf16(residual, leading)
    rms_norm_backward(lab.device, dx[1], *arrays, rows, width, leading)
    exact = rms_norm.rms_norm_backward(wide[2], wide[0], wide[1], exact_rstd) + wide[3]
    plain = rms_norm.rms_norm_backward(dy, x, w, emulated_rstd) + residual
    assert_as_good_as_legal(lab.read_bf16(dx).reshape(rows, leading)[:, :width], exact, bf16(plain))


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 8), (2, 64), (1, 128)])
def test_rope(lab: Any, bf16: Any, heads: int, head_dim: int) -> None:
    random = np.random.default_rng(head_dim)
    positions = np.array([0, 1, 2, 31, 33, 500, 0, 1], np.int32)
    x = bf16(random.standard_normal((1, len(positions), heads, head_dim)))
    cos, sin = rope.rope_table(np.arange(512), head_dim, 1e6, np.float32)
    leading = heads * head_dim + 6
    table = lab.put(cos), lab.put(sin), lab.put(positions, np.int32)
    rows = x.reshape(len(positions), -1)
    exact_table = rope.rope_table(positions[None], head_dim, 1e6, np.float64)
    for launch, oracle in ((rope_forward, rope.rope_forward), (rope_backward, rope.rope_backward)):
        y = lab.output(len(positions) * leading, np.uint16)
        launch(lab.device, y[1], lab.put_bf16(rows, leading), *table, heads, head_dim, leading)
        exact = oracle(x.astype(np.float64), *exact_table)
        emulated = oracle(x, cos[positions][None], sin[positions][None], BF16)
        found = lab.read_bf16(y).reshape(len(positions), leading)[:, : heads * head_dim]
        assert_as_good_as_legal(found.reshape(x.shape), exact, emulated)


@pytest.mark.parametrize("size", [1, 31, 257, 1000])
def test_swiglu(lab: Any, bf16: Any, size: int) -> None:
    random = np.random.default_rng(size)
    gate, up, dy = (bf16(4 * random.standard_normal(size)) for _ in range(3))
    if size > 31:
        gate[:4] = 100, -100, 0, -3e4
    arrays = {name: lab.put_bf16(values) for name, values in (("gate", gate), ("up", up), ("dy", dy))}
    wide = [a.astype(np.float64) for a in (gate, up, dy)]
    y = lab.output(size, np.uint16)
    swiglu_forward(lab.device, y[1], arrays["gate"], arrays["up"])
    assert_as_good_as_legal(
        lab.read_bf16(y), swiglu.swiglu_forward(*wide[:2]), swiglu.swiglu_forward(gate, up, BF16)
    )
    dgate, dup = lab.output(size, np.uint16), lab.output(size, np.uint16)
    swiglu_backward(lab.device, dgate[1], dup[1], arrays["dy"], arrays["gate"], arrays["up"])
    exact = swiglu.swiglu_backward(wide[2], wide[0], wide[1])
    emulated = swiglu.swiglu_backward(dy, gate, up, BF16)
    for found, right, legal in zip((dgate, dup), exact, emulated, strict=True):
        assert_as_good_as_legal(lab.read_bf16(found), right, legal)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 130, 4096, 10_001])
def test_nf4_is_bit_exact(lab: Any, size: int) -> None:
    random = np.random.default_rng(size)
    values = random.standard_normal(size).astype(np.float32)
    values[: size // 4] *= 1e-6
    values[64:128] = 0
    expected_packed, expected_absmax = nf4.nf4_quantize(values)
    packed, absmax = lab.output(expected_packed.size, np.uint8), lab.output(expected_absmax.size, np.float32)
    table = lab.put(TABLE)
    nf4_quantize(lab.device, packed[1], absmax[1], lab.put(values), table)
    np.testing.assert_array_equal(lab.read(absmax), expected_absmax)
    np.testing.assert_array_equal(lab.read(packed), expected_packed)
    out = lab.output(size, np.uint16)
    arrays = lab.put(expected_packed, np.uint8), lab.put(expected_absmax)
    nf4_dequantize(lab.device, out[1], *arrays, table, size)
    right = nf4.nf4_dequantize(expected_packed, expected_absmax, (size,))
    np.testing.assert_array_equal(lab.read(out), bf16_from_float32(right))
