"""SwiGLU (Shazeer 2020, arXiv 2002.05202): y = silu(gate) * up, silu(g) = g * sigmoid(g).

    dup = dy * silu(g);   dgate = dy * up * sigmoid(g) * (1 + g * (1 - sigmoid(g)))
The backward recomputes the sigmoid: storing it would cost as much memory as the gate itself.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]


def _sigmoid(x: Array) -> Array:
    # exp(-x) overflows to infinity for very negative x, and 1 / (1 + inf) is the right 0.
    with np.errstate(over="ignore"):
        s = np.exp(-x)
    s += 1
    return np.reciprocal(s, out=s)


def swiglu_forward(gate: Array, up: Array, rnd: Rounding = EXACT) -> Array:
    """gate, up [..., F] -> y [..., F]."""
    y = _sigmoid(gate)
    y *= gate
    y *= up
    return rnd(y, Point.SWIGLU)


def swiglu_backward(dy: Array, gate: Array, up: Array, rnd: Rounding = EXACT) -> tuple[Array, Array]:
    """dy, gate, up [..., F] -> dgate, dup [..., F]."""
    sigmoid = _sigmoid(gate)
    silu = sigmoid * gate
    dup = dy * silu
    # sigmoid * (1 + g * (1 - sigmoid)) = sigmoid + silu * (1 - sigmoid)
    dgate = 1 - sigmoid
    dgate *= silu
    dgate += sigmoid
    dgate *= up
    dgate *= dy
    return rnd(dgate, Point.ACTIVATION_GRAD), rnd(dup, Point.ACTIVATION_GRAD)
