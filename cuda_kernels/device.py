"""The GPU as the engine needs it: memory, one stream, launches; or the simulator in its place.

All work goes onto one stream, in order. Copies to the host wait for it; nothing else does.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A contiguous one-dimensional array on a device. address: on the GPU. host: the memory itself where the
    device is simulated."""

    address: int
    size: int
    dtype: np.dtype[Any]
    host: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def part(self, start: int, size: int) -> "DeviceArray":
        """Elements start to start + size. Raises ValueError outside of the array."""
        if start < 0 or size < 0 or start + size > self.size:
            raise ValueError(f"elements {start} to {start + size} of an array of {self.size}")
        host = None if self.host is None else self.host[start : start + size]
        return DeviceArray(self.address + start * self.dtype.itemsize, size, self.dtype, host)

    def view(self, dtype: DTypeLike) -> "DeviceArray":
        """The same bytes as values of another type."""
        kind = np.dtype(dtype)
        host = None if self.host is None else self.host.view(kind)
        return DeviceArray(self.address, self.nbytes // kind.itemsize, kind, host)


class Device(Protocol):
    """name: `cuda` or `sim`."""

    @property
    def name(self) -> str: ...

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """Memory that holds garbage; in the simulator bytes that are NaN in every float type."""
        ...

    def free(self, array: DeviceArray) -> None:
        """Gives back what `empty` gave, after all work enqueued before."""
        ...

    def free_bytes(self) -> int:
        """What `empty` could still give."""
        ...

    def nothing(self, dtype: DTypeLike) -> DeviceArray:
        """An array of no element, for an argument that is not given."""
        ...

    def upload(self, array: DeviceArray, data: NDArray[Any]) -> None:
        """Copies from the host, whose memory may change afterwards. Raises ValueError unless size and dtype are
        the array's."""
        ...

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """A copy on the host, after all work enqueued before."""
        ...

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Sets every byte."""
        ...

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, values: list[Any]
    ) -> None:
        """Enqueues a compiled kernel with packed arguments."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work`, which only launches and fills, as something that enqueues all of it at once: on a GPU a graph.
        Its arrays must stay where they are. Nothing of it is carried out yet."""
        ...


def _checked(array: DeviceArray, data: NDArray[Any]) -> NDArray[Any]:
    if data.size != array.size or data.dtype != array.dtype:
        raise ValueError(f"{data.size} values of {data.dtype} for an array of {array.size} {array.dtype}")
    return np.ascontiguousarray(data).reshape(-1)


class SimulatedDevice:
    """Host memory, for kernels under NUMBA_ENABLE_CUDASIM."""

    name = "sim"

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """See Device."""
        kind = np.dtype(dtype)
        raw = np.full(size * kind.itemsize + ALIGNMENT, 0xFF, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        host = raw[start : start + size * kind.itemsize].view(kind)
        return DeviceArray(host.ctypes.data, size, kind, host)

    def free(self, array: DeviceArray) -> None:
        """See Device."""

    def free_bytes(self) -> int:
        """As much as a test can need."""
        return 2**40

    def nothing(self, dtype: DTypeLike) -> DeviceArray:
        """See Device."""
        return self.empty(0, dtype)

    def upload(self, array: DeviceArray, data: NDArray[Any]) -> None:
        """See Device."""
        _memory(array)[:] = _checked(array, data)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """See Device."""
        return _memory(array).copy()

    def fill(self, array: DeviceArray, byte: int) -> None:
        """See Device."""
        _memory(array).view(np.uint8)[:] = byte

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, values: list[Any]
    ) -> None:
        """Never called: Kernel runs the function itself."""
        raise RuntimeError("compiled code in the simulator")

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device."""
        return work


def _memory(array: DeviceArray) -> NDArray[Any]:
    assert array.host is not None, "an array of another device"
    return array.host


class CudaDevice:
    """The first GPU, through the driver's own functions; Numba only compiles. Raises RuntimeError where the
    driver refuses."""

    name = "cuda"

    def __init__(self) -> None:
        from cuda.bindings import driver
        from numba import cuda

        cuda.current_context()  # makes the primary context the calling thread's
        self._driver = driver
        self.stream = _done(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def empty(self, size: int, dtype: DTypeLike) -> DeviceArray:
        """See Device."""
        kind = np.dtype(dtype)
        pointer = _done(self._driver.cuMemAlloc(max(1, size * kind.itemsize)))
        return DeviceArray(int(pointer), size, kind)

    def free(self, array: DeviceArray) -> None:
        """See Device."""
        self.synchronize()
        _done(self._driver.cuMemFree(array.address))

    def free_bytes(self) -> int:
        """See Device."""
        return int(_done(self._driver.cuMemGetInfo())[0])

    def nothing(self, dtype: DTypeLike) -> DeviceArray:
        """See Device."""
        return DeviceArray(0, 0, np.dtype(dtype))

    def upload(self, array: DeviceArray, data: NDArray[Any]) -> None:
        """See Device."""
        source = _checked(array, data)
        if source.nbytes:
            copy = self._driver.cuMemcpyHtoDAsync
            # From pageable memory the driver copies to a buffer of its own before it returns.
            _done(copy(array.address, source.ctypes.data, source.nbytes, self.stream))

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """See Device."""
        data = np.empty(array.size, array.dtype)
        if data.nbytes:
            copy = self._driver.cuMemcpyDtoHAsync
            _done(copy(data.ctypes.data, array.address, data.nbytes, self.stream))
            self.synchronize()
        return data

    def fill(self, array: DeviceArray, byte: int) -> None:
        """See Device."""
        if array.nbytes:
            _done(self._driver.cuMemsetD8Async(array.address, byte, array.nbytes, self.stream))

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, values: list[Any]
    ) -> None:
        """See Device."""
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        where = ctypes.addressof(pointers)
        _done(self._driver.cuLaunchKernel(function, *grid, threads, 1, 1, shared, self.stream, where, 0))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device. Capturing is relaxed: a kernel may be compiled and loaded meanwhile."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _done(driver.cuStreamBeginCapture(self.stream, mode))
        try:
            work()
        finally:
            graph = _done(driver.cuStreamEndCapture(self.stream))
        run = _done(driver.cuGraphInstantiate(graph, 0))
        _done(driver.cuGraphDestroy(graph))

        def replay() -> None:
            _done(driver.cuGraphLaunch(run, self.stream))

        return replay

    def synchronize(self) -> None:
        """Waits for all work enqueued. Raises RuntimeError with the driver's name of what went wrong in it."""
        _done(self._driver.cuStreamSynchronize(self.stream))


def _done(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises RuntimeError."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"the CUDA driver refused: {status.name}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
