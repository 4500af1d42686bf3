"""Attention, backward: reference/attention.py on the GPU, without atomics.

    delta_i = do_i . context_i;   p_ij = exp(s_ij - lse_i);   ds_ij = p_ij (do_i . v_j - delta_i)
    dv_j = sum_i p_ij do_i;   dk_j = scale sum_i ds_ij q_i;   dq_i = scale sum_j ds_ij k_j

One kernel owns keys and goes over the queries that see them, of all heads of the group; another owns queries
and goes over their keys. Each recomputes p. In the first a warp holds keys as rows, so that p^T and ds^T leave
the scores' registers as left operands; in the second it holds queries.
"""

import math
from functools import cache

from numba import cuda, float32, int32, uint16, uint32

from nf4tui.cuda_kernels.attention import KEYS, LOG2E, QUERIES, THREADS
from nf4tui.cuda_kernels.bf16 import load_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import (
    copy_async_commit,
    exp2,
    make_copy_async_wait,
    mma_bf16,
    pack_bf16,
    shared_address,
    store_32,
)
from nf4tui.cuda_kernels.tile import left_fragment, right_fragments, right_fragments_by_row, row_loader
from nf4tui.cuda_kernels.warp import warp_sum

STEP = 32  # columns of scores that a warp holds at a time
SCORES = STEP // 8  # groups of columns that a lane holds two of
SUMS = 2 * STEP

wait_for_all = make_copy_async_wait(0)


def _delta(delta, do, context, rows, width, heads):
    place = cuda.blockIdx.x * (THREADS // 32) + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if place >= rows * heads:
        return
    start = place * width
    total = float32(0)
    for i in range(lane, width, 32):
        total += load_bf16(do, start + i) * load_bf16(context, start + i)
    total = warp_sum(total)
    if lane == 0:
        delta[place] = total


DELTA = Kernel(_delta, (F32, U16, U16, i32, i32, i32), threads=THREADS)


@cuda.jit(device=True)
def add_product(acc, j, a, b):
    """acc[2 j] and acc[2 j + 1], eight columns each, plus a times the two operands in b."""
    d = mma_bf16(a, b[0], b[1], (acc[2 * j, 0], acc[2 * j, 1], acc[2 * j, 2], acc[2 * j, 3]))
    acc[2 * j, 0], acc[2 * j, 1], acc[2 * j, 2], acc[2 * j, 3] = d
    jj = 2 * j + 1
    d = mma_bf16(a, b[2], b[3], (acc[jj, 0], acc[jj, 1], acc[jj, 2], acc[jj, 3]))
    acc[jj, 0], acc[jj, 1], acc[jj, 2], acc[jj, 3] = d


@cuda.jit(device=True)
def packed_left(values, part):
    """Scores in registers as the left operand of columns 16 part to 16 part + 16."""
    return (
        pack_bf16(values[2 * part, 0], values[2 * part, 1]),
        pack_bf16(values[2 * part, 2], values[2 * part, 3]),
        pack_bf16(values[2 * part + 1, 0], values[2 * part + 1, 1]),
        pack_bf16(values[2 * part + 1, 2], values[2 * part + 1, 3]),
    )


@cache
def keys_kernel(width: int) -> Kernel:
    """dk and dv. Blocks: x over tiles of keys, y over key/value heads, z over rows."""
    parts, pairs = width // 16, width // 8
    keys_bytes, step_bytes = KEYS * width * 2, STEP * width * 2
    load_keys, load_step = row_loader(KEYS, width, THREADS), row_loader(STEP, width, THREADS)
    left, right, right_by_row = left_fragment(width), right_fragments(width), right_fragments_by_row(width)

    def attention_keys(
        dk, dv, q, k, v, do, lse, delta, starts, T, heads, group, lead_q, lead_k, scale, scale2
    ):
        memory = cuda.shared.array(0, uint16)
        shared = shared_address(memory)
        sums = cuda.shared.array(SUMS, float32)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        warp = uint32(cuda.threadIdx.x) >> uint32(5)
        quad, in_quad = int32(lane >> uint32(2)), int32(lane & uint32(3))
        first = int32(cuda.blockIdx.x) * KEYS
        kv_head, base = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z) * T
        column_k = kv_head * width
        upper = first + int32(warp) * 16 + quad
        values = uint32(shared + uint32(keys_bytes))
        queries = uint32(values + uint32(keys_bytes))
        outs = uint32(queries + uint32(step_bytes))
        load_keys(shared, k, base + first, base + T, column_k, lead_k)
        load_keys(values, v, base + first, base + T, column_k, lead_k)
        copy_async_commit()
        dk_sum = cuda.local.array((pairs, 4), float32)
        dv_sum = cuda.local.array((pairs, 4), float32)
        for j in range(pairs):
            for r in range(4):
                dk_sum[j, r] = float32(0)
                dv_sum[j, r] = float32(0)
        last_key = min(first + KEYS, T) - 1
        for member in range(group):
            head = kv_head * group + member
            column_q = head * width
            for query in range(first // STEP * STEP, T, STEP):
                # Documents follow one another: once a tile begins after this one's keys, all do.
                if starts[base + query] > last_key:
                    break
                cuda.syncthreads()
                load_step(queries, q, base + query, base + T, column_q, lead_q)
                load_step(outs, do, base + query, base + T, column_q, lead_q)
                copy_async_commit()
                if cuda.threadIdx.x < STEP:
                    at = query + int32(cuda.threadIdx.x)
                    inside = at < T
                    sums[cuda.threadIdx.x] = lse[(base + at) * heads + head] if inside else float32(0)
                    sums[cuda.threadIdx.x + STEP] = (
                        delta[(base + at) * heads + head] if inside else float32(0)
                    )
                wait_for_all()
                cuda.syncthreads()
                p = cuda.local.array((SCORES, 4), float32)
                ds = cuda.local.array((SCORES, 4), float32)
                for j in range(SCORES):
                    for r in range(4):
                        p[j, r] = float32(0)
                        ds[j, r] = float32(0)
                for part in range(parts):
                    a = left(shared, uint32(warp * uint32(16)), uint32(part), lane)
                    b = left(values, uint32(warp * uint32(16)), uint32(part), lane)
                    for j in range(STEP // 16):
                        add_product(p, j, a, right(queries, uint32(16 * j), uint32(part), lane))
                        add_product(ds, j, b, right(outs, uint32(16 * j), uint32(part), lane))
                for j in range(SCORES):
                    for r in range(2):
                        place = 8 * j + 2 * in_quad + r
                        at = query + place
                        start = T
                        if at < T:
                            start = starts[base + at]
                        for half in range(2):
                            key = upper + 8 * half
                            value = float32(0)
                            if start <= key <= at:
                                value = exp2(p[j, r + 2 * half] * scale2 - sums[place] * float32(LOG2E))
                            p[j, r + 2 * half] = value
                            ds[j, r + 2 * half] = value * (ds[j, r + 2 * half] - sums[STEP + place])
                for part in range(STEP // 16):
                    a, b = packed_left(p, part), packed_left(ds, part)
                    for j in range(parts):
                        add_product(dv_sum, j, a, right_by_row(outs, uint32(part), uint32(16 * j), lane))
                        add_product(dk_sum, j, b, right_by_row(queries, uint32(part), uint32(16 * j), lane))
        wait_for_all()
        for half in range(2):
            key = upper + 8 * half
            if key < T:
                for j in range(pairs):
                    index = (base + key) * lead_k + column_k + 8 * j + 2 * in_quad
                    store_32(dv, index, pack_bf16(dv_sum[j, 2 * half], dv_sum[j, 2 * half + 1]))
                    store_32(
                        dk, index, pack_bf16(dk_sum[j, 2 * half] * scale, dk_sum[j, 2 * half + 1] * scale)
                    )

    signature = (*(U16,) * 6, F32, F32, I32, *(i32,) * 5, f32, f32)
    return Kernel(attention_keys, signature, threads=THREADS, shared=2 * keys_bytes + 2 * step_bytes)


@cache
def queries_kernel(width: int) -> Kernel:
    """dq. Blocks: x over tiles of queries, y over heads, z over rows."""
    parts, pairs = width // 16, width // 8
    queries_bytes, step_bytes = QUERIES * width * 2, STEP * width * 2
    load_queries, load_step = row_loader(QUERIES, width, THREADS), row_loader(STEP, width, THREADS)
    left, right, right_by_row = left_fragment(width), right_fragments(width), right_fragments_by_row(width)

    def attention_queries(
        dq, q, k, v, do, lse, delta, starts, T, heads, group, lead_q, lead_k, scale, scale2
    ):
        memory = cuda.shared.array(0, uint16)
        shared = shared_address(memory)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        warp = uint32(cuda.threadIdx.x) >> uint32(5)
        quad, in_quad = int32(lane >> uint32(2)), int32(lane & uint32(3))
        first = int32(cuda.blockIdx.x) * QUERIES
        head, base = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z) * T
        column_q, column_k = head * width, head // group * width
        upper = first + int32(warp) * 16 + quad
        outs = uint32(shared + uint32(queries_bytes))
        keys = uint32(outs + uint32(queries_bytes))
        values = uint32(keys + uint32(step_bytes))
        load_queries(shared, q, base + first, base + T, column_q, lead_q)
        load_queries(outs, do, base + first, base + T, column_q, lead_q)
        copy_async_commit()
        start_upper, start_lower = T, T
        lse_upper, lse_lower, delta_upper, delta_lower = float32(0), float32(0), float32(0), float32(0)
        if upper < T:
            start_upper = starts[base + upper]
            lse_upper = lse[(base + upper) * heads + head] * float32(LOG2E)
            delta_upper = delta[(base + upper) * heads + head]
        if upper + 8 < T:
            start_lower = starts[base + upper + 8]
            lse_lower = lse[(base + upper + 8) * heads + head] * float32(LOG2E)
            delta_lower = delta[(base + upper + 8) * heads + head]
        dq_sum = cuda.local.array((pairs, 4), float32)
        for j in range(pairs):
            for r in range(4):
                dq_sum[j, r] = float32(0)
        for key in range(starts[base + first] // STEP * STEP, min(first + QUERIES, T), STEP):
            cuda.syncthreads()
            load_step(keys, k, base + key, base + T, column_k, lead_k)
            load_step(values, v, base + key, base + T, column_k, lead_k)
            copy_async_commit()
            wait_for_all()
            cuda.syncthreads()
            p = cuda.local.array((SCORES, 4), float32)
            ds = cuda.local.array((SCORES, 4), float32)
            for j in range(SCORES):
                for r in range(4):
                    p[j, r] = float32(0)
                    ds[j, r] = float32(0)
            for part in range(parts):
                a = left(shared, uint32(warp * uint32(16)), uint32(part), lane)
                b = left(outs, uint32(warp * uint32(16)), uint32(part), lane)
                for j in range(STEP // 16):
                    add_product(p, j, a, right(keys, uint32(16 * j), uint32(part), lane))
                    add_product(ds, j, b, right(values, uint32(16 * j), uint32(part), lane))
            for j in range(SCORES):
                for r in range(2):
                    at = key + 8 * j + 2 * in_quad + r
                    value = float32(0)
                    if start_upper <= at <= upper:
                        value = exp2(p[j, r] * scale2 - lse_upper)
                    ds[j, r] = value * (ds[j, r] - delta_upper)
                    value = float32(0)
                    if start_lower <= at <= upper + 8:
                        value = exp2(p[j, r + 2] * scale2 - lse_lower)
                    ds[j, r + 2] = value * (ds[j, r + 2] - delta_lower)
            for part in range(STEP // 16):
                a = packed_left(ds, part)
                for j in range(parts):
                    add_product(dq_sum, j, a, right_by_row(keys, uint32(part), uint32(16 * j), lane))
        wait_for_all()
        for half in range(2):
            query = upper + 8 * half
            if query < T:
                for j in range(pairs):
                    index = (base + query) * lead_q + column_q + 8 * j + 2 * in_quad
                    store_32(
                        dq, index, pack_bf16(dq_sum[j, 2 * half] * scale, dq_sum[j, 2 * half + 1] * scale)
                    )

    signature = (*(U16,) * 5, F32, F32, I32, *(i32,) * 5, f32, f32)
    return Kernel(attention_queries, signature, threads=THREADS, shared=2 * queries_bytes + 2 * step_bytes)


def attention_backward(
    device: Device,
    dq: DeviceArray,
    dk: DeviceArray,
    dv: DeviceArray,
    delta: DeviceArray,
    do: DeviceArray,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    context: DeviceArray,
    lse: DeviceArray,
    starts: DeviceArray,
    shape: tuple[int, int],
    heads: int,
    kv_heads: int,
    width: int,
) -> None:
    """dq, dk, dv of the forward's tensors and do [N, heads * width]. delta [N, heads] float32: scratch."""
    B, T = shape
    rows = B * T
    DELTA(device, (-(-rows * heads // (THREADS // 32)),), delta, do, context, rows, width, heads)
    sizes = T, heads, heads // kv_heads, heads * width, kv_heads * width
    scale = 1 / math.sqrt(width)
    arrays = q, k, v, do, lse, delta, starts
    grid = -(-T // KEYS), kv_heads, B
    keys_kernel(width)(device, grid, dk, dv, *arrays, *sizes, scale, scale * LOG2E)
    grid = -(-T // QUERIES), heads, B
    queries_kernel(width)(device, grid, dq, *arrays, *sizes, scale, scale * LOG2E)
