"""The only place that chooses an engine."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from nf4tui.engine import Engine
from nf4tui.errors import CannotRunError, InputError
from nf4tui.gpu import find_gpu, simulate
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights

DEVICES = ("auto", "cuda", "cpu")
SIMULATOR = "sim"


def choose_device(device: str, *, simulator: bool = False) -> str:
    """`auto`, `cpu`, `cuda`, or where `simulator` allows it `sim`, to the device that will run. Raises CannotRunError
    for one that cannot run here, and InputError for an unknown name."""
    allowed = (*DEVICES, SIMULATOR) if simulator else DEVICES
    if device not in allowed:
        raise InputError(f"--device {device!r}: must be one of {', '.join(allowed)}")
    if device == "auto":
        try:
            find_gpu()
        except CannotRunError:
            return "cpu"
        return "cuda"
    if device == "cuda":
        try:
            find_gpu()
        except CannotRunError as error:
            raise CannotRunError(f"--device cuda: {error}; --device cpu needs no GPU") from error
    if device == SIMULATOR:
        simulate()
    return device


def create_engine(
    device: str,
    weights: ModelWeights,
    lora: LoraConfig | None,
    *,
    seed: int,
    adapters: Mapping[str, NDArray[Any]] | None = None,
    recompute: bool | None = None,
) -> Engine:
    """The engine of a device that choose_device gave. adapters None: fresh ones from the seed; lora None: the base
    alone. recompute: of the CUDA engine. Raises CannotRunError where the device has not the memory."""
    if device == "cpu":
        from nf4tui.reference.engine import ReferenceEngine

        return ReferenceEngine(weights, lora, seed=seed, adapters=adapters)
    from nf4tui.cuda_kernels.device import CudaDevice, SimulatedDevice
    from nf4tui.cuda_kernels.engine import CudaEngine

    chosen = SimulatedDevice() if device == SIMULATOR else CudaDevice()
    return CudaEngine(chosen, weights, lora, seed=seed, adapters=adapters, recompute=recompute)
