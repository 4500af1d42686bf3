"""Causal grouped-query attention over packed documents, forward: reference/attention.py on the GPU.

FlashAttention-2 (Dao 2023, arXiv 2307.08691): a block takes 64 queries of a head and goes over the keys that
they may see in tiles of 64, with a running maximum and sum a row. No [T, T] array exists. A warp owns 16
queries; its scores stay in registers and become the left operand of the product with the values.

A document's first position is given for every token (`starts`): query i sees keys starts[i] to i of its row.
Padding has starts[i] = T and sees nothing: its context and log-sum-exp are 0.
"""

import math
from functools import cache

from numba import cuda, float32, int32, uint16, uint32

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import (
    copy_async_commit,
    exp2,
    log,
    make_copy_async_wait,
    mma_bf16,
    pack_bf16,
    shared_address,
    store_32,
)
from nf4tui.cuda_kernels.tile import left_fragment, right_fragments, right_fragments_by_row, row_loader

QUERIES, KEYS = 64, 64  # of a tile
SCORES = KEYS // 8  # groups of columns that a lane holds two of
THREADS = 128
FULL = 0xFFFFFFFF
LOG2E = math.log2(math.e)
NOTHING = -1e30  # the maximum of no score

wait_for_all = make_copy_async_wait(0)
wait_but_one = make_copy_async_wait(1)


@cuda.jit(device=True)
def quad_max(value):
    """Over the four lanes that hold a row; all of the warp must call."""
    value = max(value, cuda.shfl_xor_sync(FULL, value, 1))
    return max(value, cuda.shfl_xor_sync(FULL, value, 2))


@cuda.jit(device=True)
def quad_sum(value):
    """Over the four lanes that hold a row; all of the warp must call."""
    value += cuda.shfl_xor_sync(FULL, value, 1)
    return value + cuda.shfl_xor_sync(FULL, value, 2)


@cache
def forward_kernel(width: int) -> Kernel:
    """For heads of `width` values. Blocks: x over tiles of queries, y over heads, z over rows."""
    parts, pairs = width // 16, width // 8
    tile_bytes = KEYS * width * 2
    load = row_loader(KEYS, width, THREADS)
    left, right, right_by_row = left_fragment(width), right_fragments(width), right_fragments_by_row(width)

    def attention_forward(context, lse, q, k, v, starts, T, heads, group, lead_q, lead_k, scale):
        memory = cuda.shared.array(0, uint16)
        shared = shared_address(memory)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        warp = uint32(cuda.threadIdx.x) >> uint32(5)
        quad, in_quad = int32(lane >> uint32(2)), int32(lane & uint32(3))
        first = int32(cuda.blockIdx.x) * QUERIES
        head, row = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        base = row * T
        column_q, column_k = head * width, head // group * width
        m_upper, m_lower = first + int32(warp) * 16 + quad, first + int32(warp) * 16 + quad + 8
        start_upper, start_lower = T, T
        if m_upper < T:
            start_upper = starts[base + m_upper]
        if m_lower < T:
            start_lower = starts[base + m_lower]
        out = cuda.local.array((pairs, 4), float32)
        for j in range(pairs):
            for r in range(4):
                out[j, r] = float32(0)
        max_upper, max_lower = float32(NOTHING), float32(NOTHING)
        sum_upper, sum_lower = float32(0), float32(0)
        # Documents follow one another, so that the tile's first query sees the farthest back.
        begin = starts[base + first] // KEYS
        end = min(first + QUERIES, T)
        tiles = (end + KEYS - 1) // KEYS
        load(shared, q, base + first, base + T, column_q, lead_q)
        if begin < tiles:
            at = uint32(shared + uint32(tile_bytes))
            load(at, k, base + begin * KEYS, base + T, column_k, lead_k)
            load(uint32(at + uint32(tile_bytes)), v, base + begin * KEYS, base + T, column_k, lead_k)
        copy_async_commit()
        for tile in range(begin, tiles):
            if tile + 1 < tiles:
                at = uint32(shared + uint32(tile_bytes * (1 + 2 * ((tile + 1 - begin) % 2))))
                load(at, k, base + (tile + 1) * KEYS, base + T, column_k, lead_k)
                load(uint32(at + uint32(tile_bytes)), v, base + (tile + 1) * KEYS, base + T, column_k, lead_k)
            copy_async_commit()
            wait_but_one()
            cuda.syncthreads()
            keys = uint32(shared + uint32(tile_bytes * (1 + 2 * ((tile - begin) % 2))))
            values = uint32(keys + uint32(tile_bytes))
            scores = cuda.local.array((SCORES, 4), float32)
            for j in range(SCORES):
                for r in range(4):
                    scores[j, r] = float32(0)
            for part in range(parts):
                a = left(shared, uint32(warp * uint32(16)), uint32(part), lane)
                for j in range(KEYS // 16):
                    b = right(keys, uint32(16 * j), uint32(part), lane)
                    c = (scores[2 * j, 0], scores[2 * j, 1], scores[2 * j, 2], scores[2 * j, 3])
                    d = mma_bf16(a, b[0], b[1], c)
                    scores[2 * j, 0], scores[2 * j, 1], scores[2 * j, 2], scores[2 * j, 3] = d
                    jj = 2 * j + 1
                    c = (scores[jj, 0], scores[jj, 1], scores[jj, 2], scores[jj, 3])
                    d = mma_bf16(a, b[2], b[3], c)
                    scores[jj, 0], scores[jj, 1], scores[jj, 2], scores[jj, 3] = d
            top_upper, top_lower = max_upper, max_lower
            for j in range(SCORES):
                for r in range(2):
                    key = tile * KEYS + 8 * j + 2 * in_quad + r
                    if key > m_upper or key < start_upper:
                        scores[j, r] = float32(-math.inf)
                    if key > m_lower or key < start_lower:
                        scores[j, r + 2] = float32(-math.inf)
                    top_upper = max(top_upper, scores[j, r])
                    top_lower = max(top_lower, scores[j, r + 2])
            top_upper, top_lower = quad_max(top_upper), quad_max(top_lower)
            shrink_upper = exp2((max_upper - top_upper) * scale)
            shrink_lower = exp2((max_lower - top_lower) * scale)
            max_upper, max_lower = top_upper, top_lower
            sum_upper *= shrink_upper
            sum_lower *= shrink_lower
            for j in range(SCORES):
                for r in range(2):
                    scores[j, r] = exp2((scores[j, r] - max_upper) * scale)
                    scores[j, r + 2] = exp2((scores[j, r + 2] - max_lower) * scale)
                    sum_upper += scores[j, r]
                    sum_lower += scores[j, r + 2]
            for j in range(pairs):
                out[j, 0] *= shrink_upper
                out[j, 1] *= shrink_upper
                out[j, 2] *= shrink_lower
                out[j, 3] *= shrink_lower
            for part in range(KEYS // 16):
                p = (
                    pack_bf16(scores[2 * part, 0], scores[2 * part, 1]),
                    pack_bf16(scores[2 * part, 2], scores[2 * part, 3]),
                    pack_bf16(scores[2 * part + 1, 0], scores[2 * part + 1, 1]),
                    pack_bf16(scores[2 * part + 1, 2], scores[2 * part + 1, 3]),
                )
                for j in range(parts):
                    b = right_by_row(values, uint32(part), uint32(16 * j), lane)
                    c = (out[2 * j, 0], out[2 * j, 1], out[2 * j, 2], out[2 * j, 3])
                    d = mma_bf16(p, b[0], b[1], c)
                    out[2 * j, 0], out[2 * j, 1], out[2 * j, 2], out[2 * j, 3] = d
                    jj = 2 * j + 1
                    c = (out[jj, 0], out[jj, 1], out[jj, 2], out[jj, 3])
                    d = mma_bf16(p, b[2], b[3], c)
                    out[jj, 0], out[jj, 1], out[jj, 2], out[jj, 3] = d
            cuda.syncthreads()
        wait_for_all()
        sum_upper, sum_lower = quad_sum(sum_upper), quad_sum(sum_lower)
        for lower in range(2):
            m = m_upper if lower == 0 else m_lower
            total = sum_upper if lower == 0 else sum_lower
            peak = max_upper if lower == 0 else max_lower
            if m < T:
                factor = float32(0)
                found = float32(0)
                if total > float32(0):
                    factor = float32(1) / total
                    found = peak * scale / float32(LOG2E) + log(total)
                if in_quad == 0:
                    lse[(base + m) * heads + head] = found
                for j in range(pairs):
                    index = (base + m) * lead_q + column_q + 8 * j + 2 * in_quad
                    store_32(
                        context, index, pack_bf16(out[j, 2 * lower] * factor, out[j, 2 * lower + 1] * factor)
                    )

    signature = (U16, F32, U16, U16, U16, I32, *(i32,) * 5, f32)
    return Kernel(attention_forward, signature, threads=THREADS, shared=5 * tile_bytes)


def attention_forward(
    device: Device,
    context: DeviceArray,
    lse: DeviceArray,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    starts: DeviceArray,
    shape: tuple[int, int],
    heads: int,
    kv_heads: int,
    width: int,
) -> None:
    """context [N, heads * width], lse [N, heads] float32 of q [N, heads * width] and k, v [N, kv_heads * width],
    with N = B * T tokens of shape = (B, T). starts [N] int32. width: 16, 32, 64 or 128."""
    B, T = shape
    forward_kernel(width)(
        device,
        (-(-T // QUERIES), heads, B),
        context, lse, q, k, v, starts,
        T, heads, heads // kv_heads, heads * width, kv_heads * width, LOG2E / math.sqrt(width),
    )  # fmt: skip
