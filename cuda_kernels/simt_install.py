"""Puts the scheduler of simt.py into Numba's CUDA simulator, and what the simulator lacks of the language.

Warp shuffles and votes are meetings of a warp. Shared memory begins as bytes that are NaN in every float type,
since on a GPU it holds garbage. Numba's own parts are replaced, once; nothing happens outside of the simulator.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import greenlet
import numpy as np
from numpy.typing import NDArray

from nf4tui.cuda_kernels import simt
from nf4tui.cuda_kernels.simt import Values

FULL = 0xFFFFFFFF


def _shuffled(source: Callable[[int, int], int]) -> Callable[..., Any]:
    """A shuffle: lane reads the value of lane source(lane, argument), its own where there is none."""

    def shuffle(self: Any, mask: int, value: Any, argument: int) -> Any:
        _check_mask(mask)

        def resolve(values: Values) -> Values:
            return {
                lane: values.get(source(lane, moved), (own, 0))[0] for lane, (own, moved) in values.items()
            }

        return simt.in_warp("shuffle", (value, int(argument)), resolve)

    return shuffle


def _vote(name: str, combine: Callable[[Values], Any]) -> Callable[..., Any]:
    def vote(self: Any, mask: int, predicate: Any) -> Any:
        _check_mask(mask)
        return simt.in_warp(name, bool(predicate), combine)

    return vote


def _check_mask(mask: int) -> None:
    """All threads of a warp must take part: a reduction over fewer leaves some of the row out."""
    if int(mask) & FULL != FULL:
        raise simt.SimulationError(f"a warp operation with the partial mask {int(mask):#x}")


def _syncwarp(self: Any, mask: int = FULL) -> None:
    _check_mask(mask)
    simt.in_warp("syncwarp", None, lambda values: None)


_LANGUAGE: dict[str, Callable[..., Any]] = {
    "syncwarp": _syncwarp,
    "shfl_sync": _shuffled(lambda lane, source: source % simt.WARP),
    "shfl_xor_sync": _shuffled(lambda lane, mask: lane ^ mask),
    "shfl_up_sync": _shuffled(lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffled(lambda lane, delta: lane + delta),
    "all_sync": _vote("all", lambda values: all(values.values())),
    "any_sync": _vote("any", lambda values: any(values.values())),
    "ballot_sync": _vote("ballot", lambda values: sum(1 << lane for lane, vote in values.items() if vote)),
}


@functools.cache
def install() -> None:
    """Makes Numba's simulator run kernels with this scheduler. Raises RuntimeError outside the simulator."""
    from numba.cuda.core import config

    if not config.ENABLE_CUDASIM:
        raise RuntimeError("NUMBA_ENABLE_CUDASIM is not set")
    from numba.cuda.simulator import kernel, kernelapi

    class Threads:
        """What kernelapi takes of `threading`."""

        current_thread = staticmethod(greenlet.getcurrent)

    kernel.BlockManager = simt.Block
    kernel.FakeWithinKernelCUDAArray = lambda array: array._ary  # plain arrays: several times faster
    kernelapi.threading = Threads
    for name, function in _LANGUAGE.items():
        setattr(kernelapi.FakeCUDAModule, name, function)
    kernelapi.FakeCUDAShared.array = _shared_array
    local = kernelapi.FakeCUDALocal.array
    kernelapi.FakeCUDALocal.array = lambda self, shape, dtype, alignment=None: local(self, shape, dtype)


def _shared_array(self: Any, shape: Any, dtype: Any, alignment: int | None = None) -> NDArray[Any]:
    """One array a block and place in the source, filled with bytes that are NaN in every float type, since
    shared memory holds garbage at first. Shape 0: the dynamic memory."""
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    numpy_type = np.dtype(numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
    frame = sys._getframe(1)
    key = "dynamic" if shape == 0 else (frame.f_code, frame.f_lasti)
    raw = self._allocations.get(key)
    if raw is None:
        size = self._dynshared_size if shape == 0 else int(np.prod(shape)) * numpy_type.itemsize
        raw = self._allocations[key] = aligned(size)
    array = raw.view(numpy_type)
    return array if shape == 0 else array.reshape(shape)


def aligned(size: int) -> NDArray[Any]:
    """`size` bytes of garbage at an address that is a multiple of 1024."""
    raw = np.full(size + 1024, 0xFF, np.uint8)
    start = -raw.ctypes.data % 1024
    return raw[start : start + size]
