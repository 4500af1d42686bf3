"""A model's frozen parameters on a device.

A matrix stays in NF4 and is dequantised into a scratch buffer at every use, which costs a few percent of the
product it is for. Rows of every bfloat16 matrix start at multiples of 8 values, as the copies of the tensor-core
kernels need.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32
from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.nf4 import BLOCK, code_table, nf4_dequantize
from nf4tui.lora import PROJECTIONS
from nf4tui.models.qwen2 import BIASED_PROJECTIONS, Qwen2Config
from nf4tui.models.weights import DenseTensor, ModelWeights
from nf4tui.nf4_code import CODE, THRESHOLDS

MAX_POSITIONS = 2**16  # of the RoPE table


def aligned(size: int) -> int:
    """The leading dimension of rows of `size` values."""
    return -(-size // 8) * 8


class DeviceParameters:
    """Room for the parameters of `config`; `load` fills it. matrix gives one projection at a time.
    Raises ValueError for a model whose rows the kernels cannot copy."""

    def __init__(self, device: Device, memory: Memory, config: Qwen2Config) -> None:
        self.config, self._device = config, device
        self.positions = min(config.max_position_embeddings, MAX_POSITIONS)
        D, V = config.hidden_size, config.vocab_size
        shapes = {name: config.projection_shape(name) for name in PROJECTIONS}
        if D % 8 or config.intermediate_size % 8 or config.head_dim not in (16, 32, 64, 128):
            raise ValueError(
                f"hidden sizes must be multiples of 8 and heads 16, 32, 64 or 128 wide: {config}"
            )
        self._table = memory.empty(31, np.float32)
        self._scratch = memory.empty(max(out * into for out, into in shapes.values()), np.uint16)
        self._matrices: dict[tuple[int, str], tuple[DeviceArray, DeviceArray]] = {}
        self._biases: dict[tuple[int, str], DeviceArray] = {}
        self.attn_norms, self.mlp_norms = list[DeviceArray](), list[DeviceArray]()
        for layer in range(config.num_hidden_layers):
            self.attn_norms.append(memory.empty(D, np.float32))
            self.mlp_norms.append(memory.empty(D, np.float32))
            for name, (out, into) in shapes.items():
                packed = memory.empty(-(-out * into // 2), np.uint8)
                self._matrices[layer, name] = packed, memory.empty(-(-out * into // BLOCK), np.float32)
                if name in BIASED_PROJECTIONS:
                    self._biases[layer, name] = memory.empty(out, np.float32)
        self.final_norm = memory.empty(D, np.float32)
        self.embedding = Operand(memory.empty(V * D, np.uint16), D)
        tied = config.tie_word_embeddings
        self.head = self.embedding if tied else Operand(memory.empty(V * D, np.uint16), D)
        half = config.head_dim // 2
        self.cos = memory.empty(self.positions * half, np.float32)
        self.sin = memory.empty(self.positions * half, np.float32)

    def load(self, weights: ModelWeights) -> None:
        """Copies a model of this config to the device."""
        self._put(self._table, code_table(CODE, THRESHOLDS))
        for number, layer in enumerate(weights.layers):
            self._put(self.attn_norms[number], layer.attn_norm)
            self._put(self.mlp_norms[number], layer.mlp_norm)
            for name in PROJECTIONS:
                packed, absmax = self._matrices[number, name]
                self._put(packed, layer.nf4(name).packed)
                self._put(absmax, layer.nf4(name).absmax)
            for name in BIASED_PROJECTIONS:
                self._put(self._biases[number, name], layer.biases[name])
        self._put(self.final_norm, weights.final_norm)
        self._put_dense(self.embedding, weights.embedding)
        if weights.lm_head is not None:
            self._put_dense(self.head, weights.lm_head)
        for array, part in zip((self.cos, self.sin), _rope_table(self.config, self.positions), strict=True):
            self._put(array, part)

    def matrix(self, layer: int, projection: str) -> Operand:
        """The dequantised matrix [out, in]; valid until the next call."""
        out, into = self.config.projection_shape(projection)
        packed, absmax = self._matrices[layer, projection]
        target = self._scratch.part(0, out * into)
        nf4_dequantize(self._device, target, packed, absmax, self._table, out * into)
        return Operand(target, into)

    def zeros(self, projection: str) -> Operand:
        """A matrix of zeros in the place of `matrix`, which leaves LoRA's term alone; valid until the next call."""
        out, into = self.config.projection_shape(projection)
        target = self._scratch.part(0, out * into)
        self._device.fill(target, 0)
        return Operand(target, into)

    def bias(self, layer: int, projection: str) -> DeviceArray | None:
        """[out] float32, or None."""
        return self._biases.get((layer, projection))

    def _put(self, array: DeviceArray, data: NDArray[Any]) -> None:
        self._device.upload(array, np.ascontiguousarray(data).reshape(-1))

    def _put_dense(self, operand: Operand, tensor: DenseTensor) -> None:
        """[V, D] as bfloat16, in pieces: a float32 copy of an embedding would double the host's memory."""
        rows, width = tensor.data.shape
        step = max(1, 2**22 // width)
        for first in range(0, rows, step):
            part = tensor.data[first : first + step]
            if part.dtype != np.uint16:
                part = bf16_from_float32(np.asarray(part, np.float32))
            self._put(operand.array.part(first * width, part.size), part)


def _rope_table(config: Qwen2Config, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin [positions, d / 2]: angles in float64 (reference/rope.py), stored in float32."""
    d = config.head_dim
    frequency = config.rope_theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
