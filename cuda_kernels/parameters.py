"""A model's frozen parameters on a device, and the shapes of its buffers.

A matrix stays in NF4 and is dequantised into a scratch buffer at every use, which costs a few percent of the
product it is for. Rows of every bfloat16 matrix start at multiples of 8 values, as the copies of the tensor-core
kernels need.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.nf4 import code_table, nf4_dequantize
from nf4tui.lora import PROJECTIONS
from nf4tui.models.weights import DenseTensor, ModelWeights
from nf4tui.nf4_code import CODE, THRESHOLDS


def aligned(size: int) -> int:
    """The leading dimension of rows of `size` values."""
    return -(-size // 8) * 8


class DeviceParameters:
    """weights: kept only for its config. matrix gives one projection at a time."""

    def __init__(self, device: Device, weights: ModelWeights, max_positions: int) -> None:
        self.config = weights.config
        self._device = device
        self._table = self._put(code_table(CODE, THRESHOLDS))
        shapes = [weights.config.projection_shape(name) for name in PROJECTIONS]
        self._scratch = device.empty(max(out * aligned(into) for out, into in shapes), np.uint16)
        self._matrices: dict[tuple[int, str], tuple[DeviceArray, DeviceArray]] = {}
        self._biases: dict[tuple[int, str], DeviceArray] = {}
        self.attn_norms, self.mlp_norms = [], []
        for number, layer in enumerate(weights.layers):
            self.attn_norms.append(self._put(layer.attn_norm))
            self.mlp_norms.append(self._put(layer.mlp_norm))
            for name in PROJECTIONS:
                tensor = layer.nf4(name)
                self._matrices[number, name] = self._put(tensor.packed), self._put(tensor.absmax)
            for name, bias in layer.biases.items():
                self._biases[number, name] = self._put(bias)
        self.final_norm = self._put(weights.final_norm)
        self.embedding = self._dense(weights.embedding)
        self.head = self.embedding if weights.lm_head is None else self._dense(weights.lm_head)
        self.cos, self.sin = (self._put(part) for part in _rope_table(weights, max_positions))

    def matrix(self, layer: int, projection: str) -> Operand:
        """The dequantised matrix [out, in]; valid until the next call."""
        out, into = self.config.projection_shape(projection)
        if into % 8:
            raise ValueError(f"{projection}: {into} inputs are no multiple of 8")
        packed, absmax = self._matrices[layer, projection]
        target = self._scratch.part(0, out * into)
        nf4_dequantize(self._device, target, packed, absmax, self._table, out * into)
        return Operand(target, into)

    def bias(self, layer: int, projection: str) -> DeviceArray | None:
        """[out] float32, or None."""
        return self._biases.get((layer, projection))

    def _dense(self, tensor: DenseTensor) -> Operand:
        """[V, D] as bfloat16 with aligned rows."""
        rows, width = tensor.data.shape
        leading = aligned(width)
        array = self._device.empty(rows * leading, np.uint16)
        step = max(1, 2**22 // width)
        for first in range(0, rows, step):
            part = tensor.data[first : first + step]
            if part.dtype != np.uint16:
                part = bf16_from_float32(np.asarray(part, np.float32))
            padded = np.zeros((len(part), leading), np.uint16)
            padded[:, :width] = part
            self._device.upload(array.part(first * leading, padded.size), padded.reshape(-1))
        return Operand(array, leading)

    def _put(self, data: NDArray[Any]) -> DeviceArray:
        flat = np.ascontiguousarray(data).reshape(-1)
        array = self._device.empty(flat.size, flat.dtype)
        self._device.upload(array, flat)
        return array


def _rope_table(weights: ModelWeights, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin [positions, d / 2]: angles in float64 (reference/rope.py), stored in float32."""
    d = weights.config.head_dim
    frequency = weights.config.rope_theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
