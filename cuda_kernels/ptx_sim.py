"""ptx_gpu.py for the simulator: the same names, carried out on NumPy memory, and stricter than a GPU.

An asynchronous copy lands only when it is waited for, so that a wait off by one leaves garbage. Addresses that
are misaligned or outside of their array are errors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, float32_from_bf16
from nf4tui.cuda_kernels import simt

Array = NDArray[Any]
Registers = tuple[Any, ...]

_LANE = np.arange(32)
_GROUP, _IN_GROUP = _LANE >> 2, _LANE & 3
_PAIR = np.arange(2)
# Which element of the 16 x 16, 16 x 8 and 16 x 8 tiles each lane's registers hold (mma.m16n8k16).
_A_ROW = _GROUP[:, None, None] + 8 * (np.arange(4) & 1)[None, :, None] + 0 * _PAIR
_A_COLUMN = 2 * _IN_GROUP[:, None, None] + 8 * (np.arange(4) >> 1)[None, :, None] + _PAIR
_B_ROW = 2 * _IN_GROUP[:, None, None] + 8 * np.arange(2)[None, :, None] + _PAIR
_B_COLUMN = _GROUP[:, None, None] + 0 * np.arange(2)[None, :, None] + 0 * _PAIR
_C_ROW = _GROUP[:, None] + 8 * (np.arange(4) >> 1)[None, :]
_C_COLUMN = 2 * _IN_GROUP[:, None] + (np.arange(4) & 1)[None, :]


def shared_address(array: Array) -> np.uint32:
    """A block's shared arrays get addresses one after another, from 1024 on."""
    places = _places()
    memory = array.reshape(-1).view(np.uint8)
    key = memory.ctypes.data
    if key not in places:
        last = max((base + held.size for base, held in places.values()), default=1024)
        places[key] = (-(-last // 1024) * 1024, memory)
    return np.uint32(places[key][0])


def _places() -> dict[int, tuple[int, Array]]:
    block = simt.current().block
    if not hasattr(block, "places"):
        block.places = {}  # type: ignore[attr-defined]
    found: dict[int, tuple[int, Array]] = block.places  # type: ignore[attr-defined]
    return found


def _shared(address: Any, size: int) -> Array:
    """The `size` bytes at a shared address, which must be a multiple of their number."""
    at = int(address)
    if at % size:
        raise simt.SimulationError(f"shared address {at:#x} is no multiple of {size}")
    for base, memory in _places().values():
        if base <= at and at + size <= base + memory.size:
            return memory[at - base : at - base + size]
    raise simt.SimulationError(f"{size} bytes at shared address {at:#x} are outside of every array")


def _global(array: Array, index: Any, size: int) -> Array:
    """The bytes of `array` from an index on, aligned as the instruction needs."""
    start = int(index) * array.itemsize
    if array.ndim != 1 or start < 0 or start + size > array.nbytes:
        raise simt.SimulationError(f"{size} bytes at index {int(index)} of an array of {array.size}")
    if (array.ctypes.data + start) % size:
        raise simt.SimulationError(f"index {int(index)} is at no multiple of {size} bytes")
    return array.view(np.uint8)[start : start + size]


def copy_async(shared: Any, array: Array, index: Any, size: Any) -> None:
    """Remembered until the group that it belongs to is waited for."""
    if not 0 <= size <= 16:
        raise simt.SimulationError(f"a copy of {size} bytes")
    target = _shared(shared, 16)
    if size == 16:
        source = _global(array, index, 16)
    else:
        source = np.zeros(16, np.uint8)
        if size:
            start = int(index) * array.itemsize
            source[:size] = array.view(np.uint8)[start : start + int(size)]
    _groups()[-1].append((target, source))


def copy_async_commit() -> None:
    """Closes a group."""
    _groups().append([])


def make_copy_async_wait(pending: int) -> Callable[[], None]:
    """The groups beyond the last `pending` land."""

    def wait() -> None:
        groups = _groups()
        while len(groups) - 1 > pending:
            for target, source in groups.pop(0):
                target[:] = source

    return wait


def _groups() -> list[list[tuple[Array, Array]]]:
    thread: Any = simt.current()
    if not hasattr(thread, "copies"):
        thread.copies = [[]]
    found: list[list[tuple[Array, Array]]] = thread.copies
    return found


def _ldmatrix(name: str, *, transposed: bool) -> Callable[[Any], Registers]:
    def resolve(addresses: dict[int, Any]) -> dict[int, Registers]:
        if len(addresses) != 32:
            raise simt.SimulationError(f"{name} by {len(addresses)} threads")
        rows = np.stack([_shared(addresses[lane], 16).view(np.uint16) for lane in range(32)])
        matrices = rows.reshape(4, 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 2, 1)
        pairs = np.ascontiguousarray(matrices).view(np.uint32)  # [matrix, row, pair]
        return {lane: tuple(pairs[:, lane >> 2, lane & 3]) for lane in range(32)}

    return lambda address: simt.in_warp(name, address, resolve)


ldmatrix = _ldmatrix("ldmatrix", transposed=False)
ldmatrix_transposed = _ldmatrix("ldmatrix.trans", transposed=True)


def mma_bf16(a: Registers, b0: Any, b1: Any, c: Registers) -> Registers:
    """As the tensor core: exact products, summed in float32."""
    found: Registers = simt.in_warp("mma", (a, (b0, b1), c), _mma)
    return found


def _mma(values: dict[int, tuple[Registers, Registers, Registers]]) -> dict[int, Registers]:
    if len(values) != 32:
        raise simt.SimulationError(f"mma by {len(values)} threads")
    a, b, c = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32), np.empty((16, 8), np.float32)
    a[_A_ROW, _A_COLUMN] = _bf16_pairs([values[lane][0] for lane in range(32)])
    b[_B_ROW, _B_COLUMN] = _bf16_pairs([values[lane][1] for lane in range(32)])
    c[_C_ROW, _C_COLUMN] = np.array([values[lane][2] for lane in range(32)], np.float32)
    d = (a @ b + c)[_C_ROW, _C_COLUMN]
    return {lane: tuple(d[lane]) for lane in range(32)}


def _bf16_pairs(registers: list[Registers]) -> Array:
    """[lanes, registers] of 32 bits -> [lanes, registers, 2] float32."""
    bits = np.array(registers, np.uint32)
    return float32_from_bf16(bits.view(np.uint16).reshape(*bits.shape, 2))


def pack_bf16(low: Any, high: Any) -> np.uint32:
    """Round to nearest even."""
    pair: Array = bf16_from_float32(np.array([low, high], np.float32))
    return np.uint32(pair.view(np.uint32)[0])


def bits_to_float(bits: Any) -> np.float32:
    """The float32 with these bits."""
    return np.float32(np.uint32(bits).view(np.float32))


def load_128(array: Array, index: Any) -> Registers:
    """Four registers."""
    return tuple(_global(array, index, 16).view(np.uint32))


def store_128(array: Array, index: Any, registers: Registers) -> None:
    """Four registers."""
    _global(array, index, 16)[:] = np.array(registers, np.uint32).view(np.uint8)


def store_32(array: Array, index: Any, register: Any) -> None:
    """One register."""
    _global(array, index, 4)[:] = np.array([register], np.uint32).view(np.uint8)


def store_shared_32(address: Any, register: Any) -> None:
    """One register."""
    _shared(address, 4)[:] = np.array([register], np.uint32).view(np.uint8)


def store_shared_64(address: Any, first: Any, second: Any) -> None:
    """Two float32."""
    _shared(address, 8)[:] = np.array([first, second], np.float32).view(np.uint8)


def exp(x: Any) -> np.float32:
    """e^x in float32, infinity where it is too large (Python's own would raise)."""
    return np.float32(np.exp(np.float32(x)))


def log(x: Any) -> np.float32:
    """The natural logarithm in float32; -infinity for 0."""
    return np.float32(np.log(np.float32(x)))


def exp2(x: Any) -> np.float32:
    """2^x in float32."""
    return np.float32(np.exp2(np.float32(x)))
