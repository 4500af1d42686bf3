"""The only place that chooses an engine."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from nf4tui.engine import Engine
from nf4tui.errors import CannotRunError, InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights


def choose_device(device: str) -> str:
    """`auto`, `cpu` or `cuda` to the device that will run. Raises CannotRunError for `cuda`, since this
    version has the CPU engine only, and InputError for an unknown name."""
    if device in ("auto", "cpu"):
        return "cpu"
    if device == "cuda":
        raise CannotRunError("--device cuda: this version has no CUDA engine yet; use --device cpu")
    raise InputError(f"--device {device!r}: must be one of auto, cuda, cpu")


def create_engine(
    device: str,
    weights: ModelWeights,
    lora: LoraConfig | None,
    *,
    seed: int,
    adapters: Mapping[str, NDArray[Any]] | None = None,
) -> Engine:
    """The engine of a chosen device. adapters None: fresh ones from the seed; lora None: the base alone."""
    choose_device(device)
    from nf4tui.reference.engine import ReferenceEngine  # noqa: PLC0415 - only the chosen engine is loaded

    return ReferenceEngine(weights, lora, seed=seed, adapters=adapters)
