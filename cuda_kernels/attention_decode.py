"""Attention of a few new tokens over a cache of keys and values: the forward of reference/decoder.py's attention.

A block takes one query of one head; each of its warps goes over every fourth key with a running maximum and sum,
and the four results are put together at the end. Memory is read once; there is little to multiply.
"""

import math
from functools import cache

from numba import cuda, float32, int32

from nf4tui.cuda_kernels.bf16 import load_bf16, store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import exp
from nf4tui.cuda_kernels.warp import warp_sum

WARPS = 4
THREADS = 32 * WARPS
NOTHING = -1e30  # the maximum of no score


def _append(cache_, rows, positions, width):
    token = cuda.blockIdx.x
    at = positions[token]
    if at >= 0:
        for i in range(cuda.threadIdx.x, width, THREADS):
            cache_[at * width + i] = rows[token * width + i]


APPEND = Kernel(_append, (U16, U16, I32, i32), threads=THREADS)


@cache
def decode_kernel(width: int) -> Kernel:
    """For heads of `width` values. Blocks: x over heads, y over new tokens."""
    parts = -(-width // 32)  # values of a head that a lane holds

    def attention_decode(context, q, keys, values, positions, heads, group, scale):
        tops = cuda.shared.array(WARPS, float32)
        sums = cuda.shared.array(WARPS, float32)
        outs = cuda.shared.array(WARPS * width, float32)
        head, token = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        lane, warp = int32(cuda.threadIdx.x) % 32, int32(cuda.threadIdx.x) // 32
        kv_width = heads // group * width
        column = head // group * width
        start = token * heads * width + head * width
        query = cuda.local.array(parts, float32)
        out = cuda.local.array(parts, float32)
        for part in range(parts):
            i = lane + 32 * part
            query[part] = load_bf16(q, start + i) * scale if i < width else float32(0)
            out[part] = float32(0)
        top, total = float32(NOTHING), float32(0)
        for key in range(warp, positions[token] + 1, WARPS):
            row = key * kv_width + column
            score = float32(0)
            for part in range(parts):
                i = lane + 32 * part
                if i < width:
                    score += query[part] * load_bf16(keys, row + i)
            score = warp_sum(score)
            peak = max(top, score)
            shrink, weight = exp(top - peak), exp(score - peak)
            top = peak
            total = total * shrink + weight
            for part in range(parts):
                i = lane + 32 * part
                if i < width:
                    out[part] = out[part] * shrink + weight * load_bf16(values, row + i)
        if lane == 0:
            tops[warp], sums[warp] = top, total
        for part in range(parts):
            i = lane + 32 * part
            if i < width:
                outs[warp * width + i] = out[part]
        cuda.syncthreads()
        if warp == 0:
            peak = float32(NOTHING)
            for w in range(WARPS):
                peak = max(peak, tops[w])
            total = float32(0)
            for w in range(WARPS):
                total += sums[w] * exp(tops[w] - peak)
            for part in range(parts):
                i = lane + 32 * part
                if i < width:
                    found = float32(0)
                    for w in range(WARPS):
                        found += outs[w * width + i] * exp(tops[w] - peak)
                    # A token that is no token (position -1) sees nothing.
                    store_bf16(context, start + i, found / total if total > float32(0) else float32(0))

    return Kernel(attention_decode, (U16, U16, U16, U16, I32, i32, i32, f32), threads=THREADS)


def append_rows(
    device: Device, cache_: DeviceArray, rows: DeviceArray, positions: DeviceArray, width: int
) -> None:
    """cache [max_tokens, width] gets rows [n, width] at positions [n]; those at -1 are left out."""
    APPEND(device, (positions.size,), cache_, rows, positions, width)


def attention_decode(
    device: Device,
    context: DeviceArray,
    q: DeviceArray,
    keys: DeviceArray,
    values: DeviceArray,
    positions: DeviceArray,
    heads: int,
    kv_heads: int,
    width: int,
) -> None:
    """context [n, heads * width] of q, over keys and values [max_tokens, kv_heads * width] up to each token's own
    position [n]."""
    sizes = heads, heads // kv_heads, 1 / math.sqrt(width)
    decode_kernel(width)(device, (heads, positions.size), context, q, keys, values, positions, *sizes)
