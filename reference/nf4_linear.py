"""A projection: frozen NF4 matrix, bias, LoRA (Hu et al. 2021, arXiv 2106.09685; QLoRA, arXiv 2305.14314).

    forward   y  = x W^T + bias + xa (s B)^T,   xa = (x * mask) A^T
    backward  dxa = dy (s B);   dA = dxa^T (x * mask);   dB = s dy^T xa
              dx  = dy W + (dxa A) * mask

W [out, in] arrives dequantised (nf4.py); it and the bias are frozen. The three terms of y share one
accumulator and are rounded once. s B is rounded, not B: the kernel scales before it stores the operand.
dx is returned as the accumulator holds it: q, k and v share one, and so do gate and up, so that the caller
adds its siblings and rounds the sum once.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoraOperands:
    """A [R, in] and s B [out, R] as the tensor cores read them, and the scaling s."""

    a: Array
    scaled_b: Array
    scaling: float

    @classmethod
    def from_master(cls, a: Array, b: Array, scaling: float, rnd: Rounding = EXACT) -> "LoraOperands":
        """Rounds the master weights a [R, in] and b [out, R] to operands, once a step."""
        return cls(rnd(a, Point.LORA_A), rnd(b * b.dtype.type(scaling), Point.LORA_B), scaling)


def lora_delta(xa: Array, lora: LoraOperands, rnd: Rounding = EXACT) -> Array:
    """xa [N, R] -> the LoRA term alone, [N, out]."""
    return rnd(xa @ lora.scaled_b.T, Point.LORA_DELTA)


def lora_xa_grad(dy: Array, lora: LoraOperands, rnd: Rounding = EXACT) -> Array:
    """dy [N, out] -> the gradient of xa, [N, R]."""
    return rnd(dy @ lora.scaled_b, Point.LORA_XA_GRAD)


def _lora_input(x: Array, mask: Array | None, rnd: Rounding) -> Array:
    return x if mask is None else rnd(x * mask, Point.LORA_INPUT)


def nf4_linear_forward(
    x: Array,
    weight: Array,
    bias: Array | None,
    lora: LoraOperands | None,
    mask: Array | None = None,
    rnd: Rounding = EXACT,
) -> tuple[Array, Array | None]:
    """x [N, in], weight [out, in], bias [out], mask [N, in] -> y [N, out], xa [N, R] (None without LoRA)."""
    y = x @ weight.T
    xa = None
    if bias is not None:
        y += rnd(bias, Point.BIAS)
    if lora is not None:
        xa = rnd(_lora_input(x, mask, rnd) @ lora.a.T, Point.LORA_XA)
        y += xa @ lora.scaled_b.T
    return rnd(y, Point.PROJECTION), xa


def nf4_linear_backward(
    dy: Array,
    x: Array,
    weight: Array,
    lora: LoraOperands | None,
    xa: Array | None,
    mask: Array | None = None,
    rnd: Rounding = EXACT,
) -> tuple[Array, Array | None, Array | None]:
    """dy [N, out] and the forward's operands -> dx [N, in], dA [R, in], dB [out, R] (None without LoRA)."""
    dx = dy @ weight
    if lora is None or xa is None:
        return dx, None, None
    dxa = lora_xa_grad(dy, lora, rnd)
    da = dxa.T @ _lora_input(x, mask, rnd)
    db = dy.T @ xa
    db *= db.dtype.type(lora.scaling)
    through = dxa @ lora.a
    if mask is not None:
        through *= mask
    dx += through
    return dx, rnd(da, Point.LORA_GRAD), rnd(db, Point.LORA_GRAD)
