"""One projection of the model with its taps, and what a pass over a batch has in common.

nf4_linear.py holds the arithmetic; here the operands are found by layer and name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nf4tui.lora import projection_path
from nf4tui.reference.attention import Span
from nf4tui.reference.dropout import DropoutKey, dropout_mask
from nf4tui.reference.nf4_linear import (
    LoraOperands,
    lora_delta,
    lora_xa_grad,
    nf4_linear_backward,
    nf4_linear_forward,
)
from nf4tui.reference.parameters import Parameters
from nf4tui.reference.rounding import Rounding

Array = NDArray[Any]
Tap = Callable[[str, Array], Array]
Gradients = dict[str, Array]


def no_tap(name: str, array: Array) -> Array:
    """Hands the tensor back."""
    return array


@dataclass(frozen=True, slots=True)
class Dropout:
    """What the masks of a pass are a function of. places [N]: each token's place in the micro-batch's
    flattened [B * T]. p: the probability of a zero, above 0."""

    key: DropoutKey
    places: NDArray[Any]
    p: float


@dataclass(frozen=True, slots=True)
class Pass:
    """What is common to all layers of one forward and backward pass over B rows of T tokens, N = B * T.

    tap(name, array) sees every intermediate tensor, and the pass goes on with what it returns: the array itself,
    or in its place another implementation's, so that each op is judged on that one's input (parity/forced.py).
    """

    parameters: Parameters
    rnd: Rounding
    shape: tuple[int, int]  # (B, T)
    spans: list[Span]
    cos: Array  # [B, T, d/2]
    sin: Array
    lora: Mapping[str, LoraOperands]  # by projection path; empty: the base model alone
    dropout: Dropout | None
    tap: Tap

    def tap_tokens(self, name: str, array: Array) -> Array:
        """Hands over a [B, T, ...] array as [N, ...], the form of all other activations."""
        return self.tap(name, array.reshape(-1, *array.shape[2:])).reshape(array.shape)


def project(run: Pass, layer: int, name: str, x: Array) -> tuple[Array, Array | None]:
    """x [N, in] through projection `name` -> y [N, out], and xa [N, R] for the backward."""
    path = projection_path(layer, name)
    lora = run.lora.get(path)
    weight, bias = run.parameters.matrix(layer, name), run.parameters.bias(layer, name)
    y, xa = nf4_linear_forward(x, weight, bias, lora, _mask(run, path, x), run.rnd)
    y = run.tap(path, y)
    if run.tap is not no_tap and lora is not None and xa is not None:
        xa = run.tap(f"{path}.lora_xa", xa)
        run.tap(f"{path}.lora_delta", lora_delta(xa, lora, run.rnd))
    return y, xa


def unproject(
    run: Pass, layer: int, name: str, dy: Array, x: Array, xa: Array | None, gradients: Gradients
) -> Array:
    """dy [N, out] -> dx [N, in]; adds dA and dB to `gradients`, by adapter tensor name."""
    path = projection_path(layer, name)
    lora = run.lora.get(path)
    dy = run.tap(f"{path}.grad", dy)
    if run.tap is not no_tap and lora is not None:
        # The term is added as it is, so its gradient is the projection's.
        run.tap(f"{path}.lora_delta.grad", dy)
        run.tap(f"{path}.lora_xa.grad", lora_xa_grad(dy, lora, run.rnd))
    weight = run.parameters.matrix(layer, name)
    dx, da, db = nf4_linear_backward(dy, x, weight, lora, xa, _mask(run, path, x), run.rnd)
    for part, gradient in (("A", da), ("B", db)):
        if gradient is not None:
            run.tap(f"{path}.grad_lora_{part}", gradient)
            key = f"{path}.lora_{part}"
            gradients[key] = gradients[key] + gradient if key in gradients else gradient
    return dx


def _mask(run: Pass, path: str, x: Array) -> Array | None:
    if run.dropout is None or path not in run.lora:
        return None
    return dropout_mask(run.dropout.key, path, run.dropout.places, x.shape[1], run.dropout.p, x.dtype)
