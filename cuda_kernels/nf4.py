"""NF4: reference/nf4.py on the GPU, bit for bit; the formulas are stated there.

A dequantised value is code * absmax in float32, rounded once to bfloat16.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint8, uint32
from numpy.typing import NDArray

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, U8, U16, Kernel
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import load_128, pack_bf16, store_32, store_128
from nf4tui.cuda_kernels.warp import warp_max

BLOCK = 64
THREADS = 256


def code_table(code: NDArray[np.float32], thresholds: NDArray[np.float32]) -> NDArray[np.float32]:
    """The 16 values and the 15 thresholds between them, as the kernels take them: [31]."""
    table: NDArray[Any] = np.concatenate([code, thresholds]).astype(np.float32)
    return table


def _dequantize(out, packed, absmax, table, count):
    codes = cuda.shared.array(16, float32)
    if cuda.threadIdx.x < 16:
        codes[cuda.threadIdx.x] = table[cuda.threadIdx.x]
    cuda.syncthreads()
    # 32 values a thread: 16 bytes in, 64 out, half a block of NF4.
    first = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * 32
    if first + 32 <= count:
        words = load_128(packed, first // 2)
        scale = absmax[first // BLOCK]
        for word in range(4):
            bits = words[word]
            # The first code of a byte is in its high nibble.
            p0 = pack_bf16(codes[(bits >> uint32(4)) & uint32(15)] * scale, codes[bits & uint32(15)] * scale)
            p1 = pack_bf16(
                codes[(bits >> uint32(12)) & uint32(15)] * scale,
                codes[(bits >> uint32(8)) & uint32(15)] * scale,
            )
            p2 = pack_bf16(
                codes[(bits >> uint32(20)) & uint32(15)] * scale,
                codes[(bits >> uint32(16)) & uint32(15)] * scale,
            )
            p3 = pack_bf16(
                codes[(bits >> uint32(28)) & uint32(15)] * scale,
                codes[(bits >> uint32(24)) & uint32(15)] * scale,
            )
            store_128(out, first + 8 * word, (p0, p1, p2, p3))
    else:
        for i in range(first, min(first + 32, count), 2):
            byte = packed[i // 2]
            scale = absmax[i // BLOCK]
            pair = pack_bf16(codes[byte >> 4] * scale, codes[byte & 15] * scale)
            if i + 1 < count:
                store_32(out, i, pair)
            else:
                out[i] = pair & uint32(0xFFFF)


def _quantize(packed, absmax, values, table, count):
    block = cuda.blockIdx.x * (THREADS // 32) + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    first = block * BLOCK + 2 * lane  # a warp takes a block, a lane one byte of it
    if block * BLOCK >= count:
        return
    a = values[first] if first < count else float32(0)
    b = values[first + 1] if first + 1 < count else float32(0)
    largest = warp_max(max(abs(a), abs(b)))
    reciprocal = float32(0)
    if largest > float32(0):
        reciprocal = float32(1) / largest
    high, low = 0, 0
    for i in range(16, 31):
        if a * reciprocal > table[i]:
            high += 1
        if b * reciprocal > table[i]:
            low += 1
    if lane == 0:
        absmax[block] = largest
    if first < count:
        packed[first // 2] = uint8(high * 16 + low)


DEQUANTIZE = Kernel(_dequantize, (U16, U8, F32, F32, i32), threads=THREADS)
QUANTIZE = Kernel(_quantize, (U8, F32, F32, F32, i32), threads=THREADS)


def nf4_dequantize(
    device: Device, out: DeviceArray, packed: DeviceArray, absmax: DeviceArray, table: DeviceArray, count: int
) -> None:
    """out [count] bfloat16 from packed [count / 2] and absmax [count / 64]."""
    DEQUANTIZE(device, (-(-count // (32 * THREADS)),), out, packed, absmax, table, count)


def nf4_quantize(
    device: Device, packed: DeviceArray, absmax: DeviceArray, values: DeviceArray, table: DeviceArray
) -> None:
    """packed and absmax of values [n] float32. A zero block has absmax 0 and the code of 0."""
    blocks = -(-values.size // BLOCK)
    QUANTIZE(device, (-(-blocks // (THREADS // 32)),), packed, absmax, values, table, values.size)
