"""Dropout on a LoRA input: reference/dropout.py on the GPU, word for word.

A mask is a function of (seed, step, micro-batch, tensor, element), so that the backward makes it again and nothing
is stored. Seed, step and micro-batch are read from the device: a captured step can be replayed.
"""

import zlib

import numpy as np
from numba import cuda, float32, uint32, uint64

from nf4tui.cuda_kernels.bf16 import load_bf16, store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, U16, U32, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.kernel import uint32 as u32
from nf4tui.philox import Purpose

THREADS = 256
PURPOSE = int(Purpose.DROPOUT)
SEED_LOW, SEED_HIGH, STEP, MICRO_BATCH, KEY = range(5)
M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


@cuda.jit(device=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Philox 4x32-10: four uint32 words of a counter and a key."""
    for _ in range(10):
        p0, p1 = uint64(c0) * uint64(M0), uint64(c2) * uint64(M1)
        c0, c1, c2, c3 = (
            uint32(p1 >> uint64(32)) ^ c1 ^ k0,
            uint32(p1 & uint64(0xFFFFFFFF)),
            uint32(p0 >> uint64(32)) ^ c3 ^ k1,
            uint32(p0 & uint64(0xFFFFFFFF)),
        )
        k0 = uint32((uint64(k0) + uint64(W0)) & uint64(0xFFFFFFFF))
        k1 = uint32((uint64(k1) + uint64(W1)) & uint64(0xFFFFFFFF))
    return c0, c1, c2, c3


@cuda.jit(device=True)
def four_words(key, place, stream):
    """The words of elements 4 place to 4 place + 4 of a tensor."""
    return philox(
        uint32(place), uint32(stream), key[STEP], uint32(PURPOSE << 28) | key[MICRO_BATCH],
        key[SEED_LOW], key[SEED_HIGH],
    )  # fmt: skip


def _forward(y, x, key, stream, threshold, keep, rows, width):
    place = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    blocks = (width + 3) // 4
    if place >= rows * blocks:
        return
    row, first = place // blocks, place % blocks * 4
    words = four_words(key, place, stream)
    for i in range(4):
        if first + i < width:
            at = row * width + first + i
            value = load_bf16(x, at) * keep if words[i] >= uint32(threshold) else float32(0)
            store_bf16(y, at, value)


def _backward(target, through, key, stream, threshold, keep, rows, width, adds):
    place = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    blocks = (width + 3) // 4
    if place >= rows * blocks:
        return
    row, first = place // blocks, place % blocks * 4
    words = four_words(key, place, stream)
    for i in range(4):
        if first + i < width:
            at = row * width + first + i
            value = through[at] * keep if words[i] >= uint32(threshold) else float32(0)
            if adds:
                target[at] += value
            else:
                target[at] = value


FORWARD = Kernel(_forward, (U16, U16, U32, u32, u32, f32, i32, i32), threads=THREADS)
BACKWARD = Kernel(_backward, (F32, F32, U32, u32, u32, f32, i32, i32, i32), threads=THREADS)


class Dropout:
    """p: the probability of a zero, above 0. key: [KEY] uint32 on the device."""

    def __init__(self, p: float, key: DeviceArray) -> None:
        self._key, self._keep = key, 1 / (1 - p)
        self._threshold = min(int(p * 2**32), 2**32 - 1)

    def forward(
        self, device: Device, y: DeviceArray, x: DeviceArray, path: str, rows: int, width: int
    ) -> None:
        """y = x * mask of the projection `path`, [rows, width] bfloat16."""
        blocks = -(-rows * (-(-width // 4)) // THREADS)
        values = self._key, _stream(path), self._threshold, self._keep
        FORWARD(device, (blocks,), y, x, *values, rows, width)

    def backward(
        self,
        device: Device,
        target: DeviceArray,
        through: DeviceArray,
        path: str,
        rows: int,
        width: int,
        *,
        adds: bool,
    ) -> None:
        """target = through * mask, or += with `adds`; [rows, width] float32; target may be through."""
        blocks = -(-rows * (-(-width // 4)) // THREADS)
        values = self._key, _stream(path), self._threshold, self._keep
        BACKWARD(device, (blocks,), target, through, *values, rows, width, int(adds))


def key_of(seed: int, step: int, micro_batch: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """[KEY] for the device. ValueError where a word would not fit: a wrapped counter would repeat numbers."""
    if not 0 <= micro_batch < 1 << 28 or not 0 <= step < 1 << 32:
        raise ValueError(f"step {step} or micro-batch {micro_batch} does not fit the counter")
    return np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, step, micro_batch], np.uint32)


def _stream(path: str) -> int:
    return zlib.crc32(path.encode())
