"""Whether the CUDA engine can run here, and on what; or in Numba's simulator.

The driver is looked for before Numba is imported: that takes a second, and a machine without a GPU need not wait.
"""

import ctypes
import importlib
import sys
from dataclasses import dataclass

from nf4tui.config import ask_numba_to_simulate
from nf4tui.errors import CannotRunError

MINIMUM = (8, 0)  # bfloat16 on the tensor cores, and asynchronous copies
_SWITCH = "NUMBA_ENABLE_CUDASIM"


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device that the engine takes: the first that CUDA shows. capability: of compute, (9, 0) for Hopper."""

    name: str
    capability: tuple[int, int]


def find_gpu() -> Gpu:
    """The GPU. Raises CannotRunError with what is missing and what to do."""
    if not _driver_is_there():
        raise CannotRunError("no NVIDIA driver was found (libcuda.so.1)")
    _import("numba.cuda", "pip install 'nf4tui[cu13]', or [cu12] for a driver of CUDA 12")
    from numba import cuda
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        raise CannotRunError(f"{_SWITCH} is set: Numba simulates a GPU and looks for none; unset it")
    if not cuda.is_available():
        raise CannotRunError("CUDA finds no GPU; nvidia-smi should list one")
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    major, minor = device.compute_capability
    if (major, minor) < MINIMUM:
        raise CannotRunError(
            f"{name} has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or newer"
        )
    return Gpu(name, (int(major), int(minor)))


def simulate() -> None:
    """Has Numba simulate a GPU in this process. Raises CannotRunError without the packages for it, or where Numba has
    begun to use a GPU."""
    if "numba" not in sys.modules:
        ask_numba_to_simulate()
    for name in ("numba.cuda", "greenlet"):
        _import(name, "pip install 'nf4tui[sim]'")
    from numba.cuda.core import config

    if not config.ENABLE_CUDASIM:
        raise CannotRunError(f"--device sim: Numba is in use for a GPU; set {_SWITCH}=1 beforehand")


def _driver_is_there() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _import(name: str, remedy: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        # Not only ImportError: numba-cuda 0.30 raises AttributeError over NumPy 2.5.
        raise CannotRunError(f"{name} cannot be imported ({error}); {remedy}") from error
