"""LoRA's tensors on a device: float32 masters, gradients and moments, each in one array, and bfloat16 operands.

One array of each kind, in the canonical order of the tensors, lets the norm, the finite check and the update be a
kernel each. The operands A and s B are rounded from the masters once after every change of them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.lora import lora_operand
from nf4tui.cuda_kernels.parameters import aligned
from nf4tui.engine import Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import check_tensors, tensor_shapes
from nf4tui.models.qwen2 import Qwen2Config


class DeviceAdapters:
    """Room for the tensors of `lora`; begin with `clear`."""

    def __init__(self, device: Device, memory: Memory, config: Qwen2Config, lora: LoraConfig | None) -> None:
        self._device, self._config, self.lora = device, config, lora
        shapes = {} if lora is None else tensor_shapes(config, lora)
        self._places: dict[str, tuple[int, tuple[int, int]]] = {}
        total = 0
        for name, shape in shapes.items():
            self._places[name] = total, shape
            total += shape[0] * shape[1]
        self.masters, self.gradients, self.first, self.second = (
            memory.empty(total, np.float32) for _ in range(4)
        )
        self._operands = {
            name: Operand(memory.empty(rows * aligned(columns), np.uint16), aligned(columns))
            for name, (_, (rows, columns)) in self._places.items()
        }

    def clear(self) -> None:
        """Gradients and moments to 0."""
        for array in (self.gradients, self.first, self.second):
            self._device.fill(array, 0)

    def rank(self, path: str) -> int:
        """R of a projection, 0 where it has no adapter."""
        place = self._places.get(f"{path}.lora_A")
        return 0 if place is None else place[1][0]

    def scaling(self, path: str) -> float:
        """The factor of the term of a projection that has an adapter."""
        assert self.lora is not None
        return self.lora.scaling_of(path)

    @property
    def largest_rank(self) -> int:
        """Of all projections; 0 without LoRA."""
        return max((shape[0] for name, (_, shape) in self._places.items() if name.endswith("A")), default=0)

    def operand(self, path: str, part: str) -> Operand:
        """`lora_A` [R, in] or s B (`lora_B`) [out, R] as bfloat16."""
        return self._operands[f"{path}.{part}"]

    def gradient(self, path: str, part: str) -> DeviceArray:
        """Where a tensor's gradient is summed, float32."""
        start, (rows, columns) = self._places[f"{path}.{part}"]
        return self.gradients.part(start, rows * columns)

    def refresh(self) -> None:
        """Rounds the operands from the masters."""
        for name, (start, (rows, columns)) in self._places.items():
            path, _, part = name.rpartition(".")
            scale = 1.0 if part == "lora_A" else self.scaling(path)
            operand = self._operands[name]
            master = self.masters.part(start, rows * columns)
            lora_operand(self._device, operand.array, master, columns, operand.leading, scale)

    def read(self, array: DeviceArray) -> Tensors:
        """One of the arrays on the host, by tensor name."""
        flat = self._device.download(array)
        return {
            name: flat[start : start + rows * columns].reshape(rows, columns).copy()
            for name, (start, (rows, columns)) in self._places.items()
        }

    def write(self, array: DeviceArray, where: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fills one of the arrays. Raises InputError unless names and shapes match exactly."""
        if self.lora is None:
            if tensors:
                raise InputError(f"{where}: given for a model without LoRA")
            return
        found = {name: tensor.shape for name, tensor in tensors.items()}
        check_tensors(where, self._config, self.lora, found)
        flat = np.concatenate([np.asarray(tensors[name], np.float32).reshape(-1) for name in self._places])
        self._device.upload(array, flat)
