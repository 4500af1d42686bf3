"""Kernels on the device under test (the simulator, or with `-m gpu` the GPU), beside the reference."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from nf4tui.bf16 import bf16_from_float32, float32_from_bf16

HERE = Path(__file__).parent
GUARD = 64  # values of NaN before and after every output


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`-m gpu` takes the kernels' tests, too: the same ones, on the GPU."""
    if config.option.markexpr == "gpu":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.gpu)


@dataclass(frozen=True)
class Lab:
    """A device with what tests do on it. Matrices are [rows, columns] with rows `leading` values apart."""

    device: Any
    simulated: bool

    def put(self, values: Any, dtype: DTypeLike = np.float32) -> Any:
        data = np.ascontiguousarray(np.asarray(values, dtype)).reshape(-1)
        array = self.device.empty(data.size, dtype)
        self.device.upload(array, data)
        return array

    def put_bf16(self, values: Any, leading: int | None = None) -> Any:
        """Rounded to bfloat16; what lies between the rows is NaN."""
        bits = bf16_from_float32(np.ascontiguousarray(values, np.float32))
        if leading is not None and leading != bits.shape[-1]:
            rows = bits.reshape(-1, bits.shape[-1])
            padded = np.full((len(rows), leading), 0xFFFF, np.uint16)
            padded[:, : bits.shape[-1]] = rows
            bits = padded
        return self.put(bits, np.uint16)

    def output(self, size: int, dtype: DTypeLike) -> Any:
        """Poisoned, between guards."""
        whole = self.device.empty(size + 2 * GUARD, dtype)
        self.device.fill(whole, 0xFF)
        return whole, whole.part(GUARD, size)

    def read(self, output: Any) -> NDArray[Any]:
        """The inside of an output; its guards must be untouched."""
        whole, inside = output
        data = self.device.download(whole)
        raw = data.view(np.uint8)
        edge = GUARD * data.itemsize
        assert (raw[:edge] == 0xFF).all() and (raw[-edge:] == 0xFF).all(), "written outside of the output"
        return data[GUARD : GUARD + inside.size]

    def read_bf16(self, output: Any) -> NDArray[np.float32]:
        return float32_from_bf16(self.read(output))


@pytest.fixture(scope="session")
def lab() -> Lab:
    from nf4tui.cuda_kernels.device import CudaDevice, SimulatedDevice
    from nf4tui.cuda_kernels.kernel import SIMULATED

    return Lab(SimulatedDevice() if SIMULATED else CudaDevice(), SIMULATED)


def rounded(values: Any) -> NDArray[np.float32]:
    """The nearest bfloat16 values, as float32."""
    return float32_from_bf16(bf16_from_float32(np.ascontiguousarray(values, np.float32)))


@pytest.fixture(scope="session")
def bf16() -> Any:
    return rounded
