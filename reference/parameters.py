"""A model's frozen parameters in the reference's work dtype.

Dequantising costs about as much as a small model's whole step, so a small model's matrices are kept;
a large one's are dequantised at every use, since they would not fit the host beside the activations.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.lora import PROJECTIONS
from nf4tui.models.weights import ModelWeights, Nf4Tensor
from nf4tui.reference.nf4 import nf4_dequantize
from nf4tui.reference.rounding import Point, Rounding

Array = NDArray[Any]

KEEP_BYTES = 2**30


class Parameters:
    """Read-only access to the weights as arrays of `dtype`, rounded by `rnd` as the kernels' operands."""

    def __init__(self, weights: ModelWeights, dtype: DTypeLike, rnd: Rounding) -> None:
        self.source = weights
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._rnd = rnd
        self._kept: dict[tuple[int, str], Array] = {}
        shapes = (weights.config.projection_shape(name) for name in PROJECTIONS)
        values = weights.config.num_hidden_layers * sum(out * into for out, into in shapes)
        self._keeps = values * self.dtype.itemsize <= KEEP_BYTES
        self.final_norm = self._vector(weights.final_norm)
        self.attn_norms = [self._vector(layer.attn_norm) for layer in weights.layers]
        self.mlp_norms = [self._vector(layer.mlp_norm) for layer in weights.layers]
        self._biases = [
            {name: self._vector(bias) for name, bias in layer.biases.items()} for layer in weights.layers
        ]

    def _vector(self, x: NDArray[np.float32]) -> Array:
        return x.astype(self.dtype, copy=False)

    def matrix(self, layer: int, projection: str) -> Array:
        """The dequantised weight [out, in]. A dense one is rounded where a dequantised one is."""
        key = (layer, projection)
        if key in self._kept:
            return self._kept[key]
        tensor = self.source.layers[layer].projections[projection]
        if isinstance(tensor, Nf4Tensor):
            matrix = nf4_dequantize(tensor.packed, tensor.absmax, tensor.shape, self.dtype, self._rnd)
        else:
            matrix = self._rnd(tensor.float32(), Point.WEIGHT).astype(self.dtype, copy=False)
        if self._keeps:
            self._kept[key] = matrix
        return matrix

    def bias(self, layer: int, projection: str) -> Array | None:
        """The bias [out], or None: Qwen2 has one on q, k and v only."""
        return self._biases[layer].get(projection)
