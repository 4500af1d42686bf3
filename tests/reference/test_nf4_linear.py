from collections.abc import Callable

import numpy as np
import pytest

from nf4tui.bf16 import round_to_bf16
from nf4tui.reference.nf4_linear import (
    LoraOperands,
    lora_delta,
    lora_xa_grad,
    nf4_linear_backward,
    nf4_linear_forward,
)
from nf4tui.reference.rounding import BF16

N, INTO, OUT, R = 9, 13, 7, 3
SCALING = 8 / 3


def _inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {
        "x": (N, INTO), "w": (OUT, INTO), "bias": (OUT,), "a": (R, INTO), "b": (OUT, R), "dy": (N, OUT)
    }  # fmt: skip
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    arrays["mask"] = (random.random((N, INTO)) > 0.3) / 0.7
    return arrays


@pytest.mark.parametrize("masked", [False, True])
def test_a_projection_is_base_bias_and_scaled_lora(masked: bool) -> None:
    i = _inputs()
    lora, mask = LoraOperands.from_master(i["a"], i["b"], SCALING), i["mask"] if masked else None
    y, xa = nf4_linear_forward(i["x"], i["w"], i["bias"], lora, mask)
    fed = i["x"] * i["mask"] if masked else i["x"]
    np.testing.assert_allclose(xa, fed @ i["a"].T, atol=1e-13)
    delta = SCALING * (fed @ i["a"].T @ i["b"].T)
    np.testing.assert_allclose(lora_delta(xa, lora), delta, atol=1e-13)
    np.testing.assert_allclose(y, i["x"] @ i["w"].T + i["bias"] + delta, atol=1e-13)
    assert np.abs(delta).min() > 1e-6


@pytest.mark.parametrize("masked", [False, True])
def test_the_backward_is_the_derivative(masked: bool, check_gradient: Callable[..., None]) -> None:
    i = _inputs()
    mask = i["mask"] if masked else None

    def loss(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        lora = LoraOperands.from_master(a, b, SCALING)
        return float((nf4_linear_forward(x, i["w"], i["bias"], lora, mask)[0] * i["dy"]).sum())

    lora = LoraOperands.from_master(i["a"], i["b"], SCALING)
    _, xa = nf4_linear_forward(i["x"], i["w"], i["bias"], lora, mask)
    gradients = nf4_linear_backward(i["dy"], i["x"], i["w"], lora, xa, mask)
    check_gradient(loss, [i["x"], i["a"], i["b"]], gradients)
    np.testing.assert_allclose(lora_xa_grad(i["dy"], lora), SCALING * i["dy"] @ i["b"], atol=1e-13)


def test_without_lora_only_the_base_remains() -> None:
    i = _inputs()
    y, xa = nf4_linear_forward(i["x"], i["w"], None, None)
    dx, da, db = nf4_linear_backward(i["dy"], i["x"], i["w"], None, None)
    np.testing.assert_array_equal(y, i["x"] @ i["w"].T)
    np.testing.assert_array_equal(dx, i["dy"] @ i["w"])
    assert xa is None and da is None and db is None


def test_the_emulation_rounds_operands_and_output_but_not_the_gradients_of_lora() -> None:
    i = {name: x.astype(np.float32) for name, x in _inputs().items()}
    lora = LoraOperands.from_master(i["a"], i["b"], SCALING, BF16)
    np.testing.assert_array_equal(lora.a, round_to_bf16(i["a"]))
    np.testing.assert_array_equal(lora.scaled_b, round_to_bf16(i["b"] * np.float32(SCALING)))
    y, xa = nf4_linear_forward(i["x"], i["w"], i["bias"], lora, None, BF16)
    for stored in (y, xa, lora_delta(xa, lora, BF16)):
        np.testing.assert_array_equal(stored, round_to_bf16(stored))
    _, da, db = nf4_linear_backward(i["dy"], i["x"], i["w"], lora, xa, None, BF16)
    for kept in (da, db):
        assert kept.dtype == np.float32 and (kept != round_to_bf16(kept)).any()
