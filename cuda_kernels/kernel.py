"""A kernel with its launch: compiled once for one signature, called with a grid and its arguments.

Numba's own launch costs tens of microseconds of the host's time; here the arguments are packed into C values
and handed to the driver. Under the simulator the function runs as it is.

A call only enqueues on the device's stream. It holds no lock and waits for nothing.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import config

from nf4tui.cuda_kernels.device import Device, DeviceArray

SIMULATED = bool(config.ENABLE_CUDASIM)
ALLOWED_SHARED = 40 * 1024  # bytes: 48 KiB need no permission, and a kernel may have static memory beside

_KINDS = (types.uint8, types.uint16, types.uint32, types.int32, types.float32, types.float64)
U8, U16, U32, I32, F32, F64 = (types.Array(kind, 1, "C") for kind in _KINDS)
int32, uint32, float32 = types.int32, types.uint32, types.float32
_SCALARS = {types.int32: ctypes.c_int32, types.uint32: ctypes.c_uint32, types.float32: ctypes.c_float}


class Kernel:
    """function: plain Python in Numba's CUDA subset. signature: a Numba type for each argument. threads: of a
    block. shared: bytes of dynamic shared memory. blocks: that a multiprocessor should hold at a time, which
    bounds the registers."""

    def __init__(
        self,
        function: Callable[..., None],
        signature: tuple[Any, ...],
        *,
        threads: int,
        shared: int = 0,
        blocks: int = 1,
    ) -> None:
        self.function, self.signature = function, signature
        self.threads, self.shared, self.blocks = threads, shared, blocks
        self._compiled: Any = None

    def __call__(self, device: Device, grid: tuple[int, ...], *arguments: Any) -> None:
        """Enqueues the kernel. Arrays are DeviceArrays; the rest are numbers. Raises ValueError for arguments
        that are not those of the signature."""
        if len(arguments) != len(self.signature):
            raise ValueError(f"{self.function.__name__}: {len(arguments)} arguments")
        for kind, argument in zip(self.signature, arguments, strict=True):
            _check(self.function.__name__, kind, argument)
        x, y, z = (*grid, 1, 1)[:3]
        if x * y * z == 0:
            return
        if SIMULATED:
            if self._compiled is None:
                self._compiled = cuda.jit(self.function)
            plain = [_in_simulator(a.host) if isinstance(a, DeviceArray) else a for a in arguments]
            self._compiled[(x, y, z), self.threads, 0, self.shared](*plain)
            return
        if self._compiled is None:
            self._compiled = _compile(self)
        values = [value for pair in zip(self.signature, arguments, strict=True) for value in _packed(*pair)]
        device.launch(self._compiled, (x, y, z), self.threads, self.shared, values)


def _in_simulator(host: Any) -> Any:
    """The memory itself. A plain array would be copied in and out, and one given twice written back twice, so
    that a kernel which works in place would lose its result."""
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(host)


def _check(name: str, kind: Any, argument: Any) -> None:
    if isinstance(kind, types.Array):
        wanted = str(kind.dtype)
        if not isinstance(argument, DeviceArray) or argument.dtype.name != wanted:
            found = argument.dtype if isinstance(argument, DeviceArray) else type(argument).__name__
            raise ValueError(f"{name}: an array of {wanted} is needed, got {found}")
    elif isinstance(argument, DeviceArray):
        raise ValueError(f"{name}: a number is needed, got an array")


def _compile(kernel: Kernel) -> Any:
    """The driver's handle of the compiled function, allowed its shared memory."""
    from cuda.bindings import driver

    jitted = cuda.jit(kernel.signature, launch_bounds=(kernel.threads, kernel.blocks))(kernel.function)
    (overload,) = jitted.overloads.values()
    handle = overload._codelibrary.get_cufunc().handle
    if kernel.shared > ALLOWED_SHARED:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = driver.CUdevice(cuda.get_current_device().id)
        (status,) = driver.cuKernelSetAttribute(
            attribute, kernel.shared, driver.CUkernel(int(handle)), device
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(
                f"{kernel.function.__name__}: {kernel.shared} bytes of shared memory: {status}"
            )
    return driver.CUfunction(int(handle))


def _packed(kind: Any, argument: Any) -> list[Any]:
    """The C values that Numba's calling convention passes for an argument. An array is seven: two object
    pointers, the number of items, their size, the address, the shape and the stride."""
    if not isinstance(kind, types.Array):
        return [_SCALARS[kind](argument)]
    size, width = argument.size, argument.dtype.itemsize
    return [
        ctypes.c_void_p(0),
        ctypes.c_void_p(0),
        ctypes.c_int64(size),
        ctypes.c_int64(width),
        ctypes.c_uint64(argument.address),
        ctypes.c_int64(size),
        ctypes.c_int64(width),
    ]
