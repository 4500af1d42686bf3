"""Matrix products on the tensor cores (mma.sync, compute capability 8.0 and up), with a LoRA term in the sum.

    C[M, N] = sum_k A[m, k] B[k, n]  +  sum_r A2[m, r] B2[r, n]

The second pair continues the loop over k into the same accumulator: y = x W^T + xa (s B)^T is one product, and
so is dx = dy W + dxa A. Operands are bfloat16, sums float32.

Layouts. A is stored [M, K] (`rows`), or [K, M] (`columns`) for products over tokens; B is stored [N, K]
(`rows`), as weights are, or [K, N] (`columns`). Leading dimensions are multiples of 8; M, N and K are any:
what lies outside is read as zeros and not written.

A block of four warps owns a tile of C. Tiles of A and B, 32 deep, come in through a ring of three stages in
shared memory (cp.async); chunks of 16 bytes are permuted within a row, so that ldmatrix meets no bank twice.

Split over k: block z sums a range of k into C[z], and `sum_splits` adds those in order. No atomics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import cuda, float32, int32, uint16, uint32

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, U16, Kernel
from nf4tui.cuda_kernels.kernel import float32 as f32
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import (
    bits_to_float,
    copy_async_commit,
    make_copy_async_wait,
    mma_bf16,
    pack_bf16,
    shared_address,
    store_32,
    store_shared_64,
)
from nf4tui.cuda_kernels.tile import (
    left_fragment,
    left_fragment_by_row,
    operand_loader,
    right_fragments,
    right_fragments_by_row,
)

DEPTH = 32  # of a stage, in k
STAGES = 3
THREADS = 128
wait_but_one = make_copy_async_wait(1)


@dataclass(frozen=True, slots=True)
class Layout:
    """a_rows: A is [M, K], else [K, M]. b_rows: B is [N, K], else [K, N]. bf16: C is bfloat16, else float32.
    tile_m, tile_n: of a block."""

    a_rows: bool = True
    b_rows: bool = True
    bf16: bool = True
    tile_m: int = 128
    tile_n: int = 128


@dataclass(frozen=True, slots=True)
class Operand:
    """A stored matrix and its leading dimension, both in values."""

    array: DeviceArray
    leading: int


def _writer(bf16: bool) -> Callable[..., None]:
    """Stores two neighbouring values of a row, of which the second may lie beyond N."""
    if bf16:

        @cuda.jit(device=True)
        def write(out, residual, index, first, second, two, scale, accumulate):
            pair = pack_bf16(first, second)
            if residual.size > 0:
                # The product is a tensor of its own: it is rounded before it is added.
                first = bits_to_float(pair << uint32(16)) + bits_to_float(
                    uint32(residual[index]) << uint32(16)
                )
                if two:
                    other = bits_to_float(uint32(residual[index + 1]) << uint32(16))
                    second = bits_to_float(pair & uint32(0xFFFF0000)) + other
                pair = pack_bf16(first, second)
            if two:
                store_32(out, index, pair)
            else:
                out[index] = uint16(pair & uint32(0xFFFF))
    else:

        @cuda.jit(device=True)
        def write(out, residual, index, first, second, two, scale, accumulate):
            if accumulate:
                out[index] += first * scale
                if two:
                    out[index + 1] += second * scale
            else:
                out[index] = first * scale
                if two:
                    out[index + 1] = second * scale

    return write


@cache
def gemm_kernel(layout: Layout) -> Kernel:
    """The kernel of a layout. Blocks: x along N, y along M, z over splits of k."""
    tile_m, tile_n = layout.tile_m, layout.tile_n
    warps_n = 2 if tile_n >= 64 else 1
    warp_m, warp_n = tile_m * warps_n // 4, tile_n // warps_n
    m_parts, n_parts = warp_m // 16, warp_n // 16
    n_pairs = 2 * n_parts
    pitch = tile_n + 8  # floats of a row of sums: eight rows of pairs meet no bank twice
    a_bytes = tile_m * DEPTH * 2
    stage_bytes = a_bytes + tile_n * DEPTH * 2
    load_a = operand_loader(layout.a_rows, tile_m, DEPTH, THREADS)
    load_b = operand_loader(layout.b_rows, tile_n, DEPTH, THREADS)
    a_fragment = left_fragment(DEPTH) if layout.a_rows else left_fragment_by_row(tile_m)
    b_fragments = right_fragments(DEPTH) if layout.b_rows else right_fragments_by_row(tile_n)
    a_rows, b_rows = layout.a_rows, layout.b_rows
    write = _writer(layout.bf16)

    def gemm(
        out, a, b, a2, b2, bias, addend, residual, leading, lead_a, lead_b, lead_a2, lead_b2, M, N, K, K2,
        steps_a_split, scale, accumulate,
    ):  # fmt: skip
        memory = cuda.shared.array(0, uint16)
        shared = shared_address(memory)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        warp = uint32(cuda.threadIdx.x) >> uint32(5)
        m0, n0 = uint32(cuda.blockIdx.y) * uint32(tile_m), uint32(cuda.blockIdx.x) * uint32(tile_n)
        m_warp = (warp // uint32(warps_n)) * uint32(warp_m)
        n_warp = (warp % uint32(warps_n)) * uint32(warp_n)
        steps_one = (K + DEPTH - 1) // DEPTH
        steps = steps_one + (K2 + DEPTH - 1) // DEPTH
        begin = int32(cuda.blockIdx.z) * steps_a_split
        end = min(steps, begin + steps_a_split)
        acc = cuda.local.array((m_parts, n_pairs, 4), float32)
        rows = cuda.local.array((m_parts, 4), uint32)
        for i in range(m_parts):
            for j in range(n_pairs):
                for r in range(4):
                    acc[i, j, r] = float32(0)
        for step in range(begin, min(begin + STAGES - 1, end) if end > begin else begin):
            at = uint32(shared + uint32((step - begin) % STAGES * stage_bytes))
            if step < steps_one:
                load_a(at, a, m0, uint32(step * DEPTH), M, K, lead_a)
                load_b(uint32(at + uint32(a_bytes)), b, n0, uint32(step * DEPTH), N, K, lead_b)
            else:
                load_a(at, a2, m0, uint32((step - steps_one) * DEPTH), M, K2, lead_a2)
                load_b(
                    uint32(at + uint32(a_bytes)), b2, n0, uint32((step - steps_one) * DEPTH), N, K2, lead_b2
                )
            copy_async_commit()
        if end - begin < STAGES - 1:
            copy_async_commit()
        for step in range(begin, end):
            wait_but_one()
            cuda.syncthreads()
            ahead = step + STAGES - 1
            if ahead < end:
                at = uint32(shared + uint32((ahead - begin) % STAGES * stage_bytes))
                if ahead < steps_one:
                    load_a(at, a, m0, uint32(ahead * DEPTH), M, K, lead_a)
                    load_b(uint32(at + uint32(a_bytes)), b, n0, uint32(ahead * DEPTH), N, K, lead_b)
                else:
                    load_a(at, a2, m0, uint32((ahead - steps_one) * DEPTH), M, K2, lead_a2)
                    load_b(
                        uint32(at + uint32(a_bytes)),
                        b2,
                        n0,
                        uint32((ahead - steps_one) * DEPTH),
                        N,
                        K2,
                        lead_b2,
                    )
            copy_async_commit()
            tile_a = uint32(shared + uint32((step - begin) % STAGES * stage_bytes))
            tile_b = uint32(tile_a + uint32(a_bytes))
            for half in range(DEPTH // 16):
                for i in range(m_parts):
                    m = uint32(m_warp + uint32(16 * i))
                    if a_rows:
                        left = a_fragment(tile_a, m, uint32(half), lane)
                    else:
                        left = a_fragment(tile_a, uint32(half), m, lane)
                    for r in range(4):
                        rows[i, r] = left[r]
                for j in range(n_parts):
                    n = uint32(n_warp + uint32(16 * j))
                    if b_rows:
                        right = b_fragments(tile_b, n, uint32(half), lane)
                    else:
                        right = b_fragments(tile_b, uint32(half), n, lane)
                    for i in range(m_parts):
                        left = (rows[i, 0], rows[i, 1], rows[i, 2], rows[i, 3])
                        for side in range(2):
                            jj = 2 * j + side
                            b0 = right[0] if side == 0 else right[2]
                            b1 = right[1] if side == 0 else right[3]
                            c = (acc[i, jj, 0], acc[i, jj, 1], acc[i, jj, 2], acc[i, jj, 3])
                            d = mma_bf16(left, b0, b1, c)
                            acc[i, jj, 0] = d[0]
                            acc[i, jj, 1] = d[1]
                            acc[i, jj, 2] = d[2]
                            acc[i, jj, 3] = d[3]
        # Through shared memory, whose stages are no longer needed: rows come out whole, and the loop that knows
        # about borders need not be unrolled over the accumulators, which must stay in registers.
        cuda.syncthreads()
        for i in range(m_parts):
            for j in range(n_pairs):
                row = uint32(m_warp + uint32(16 * i) + (lane >> uint32(2)))
                column = uint32(n_warp + uint32(8 * j) + ((lane & uint32(3)) << uint32(1)))
                at = uint32(shared + (row * uint32(pitch) + column) * uint32(4))
                store_shared_64(at, acc[i, j, 0], acc[i, j, 1])
                store_shared_64(uint32(at + uint32(8 * pitch * 4)), acc[i, j, 2], acc[i, j, 3])
        cuda.syncthreads()
        sums = cuda.shared.array(0, float32)
        z = int32(cuda.blockIdx.z) * M * leading
        for place in range(int32(cuda.threadIdx.x), tile_m * tile_n // 2, THREADS):
            row, column = place // (tile_n // 2), 2 * (place % (tile_n // 2))
            m, n = int32(m0) + row, int32(n0) + column
            if m < M and n < N:
                two = n + 1 < N
                first, second = sums[row * pitch + column], sums[row * pitch + column + 1]
                if bias.size > 0:
                    first += bias[n]
                    if two:
                        second += bias[n + 1]
                if addend.size > 0:
                    first += addend[m * leading + n]
                    if two:
                        second += addend[m * leading + n + 1]
                write(out, residual, z + m * leading + n, first, second, two, scale, accumulate)

    signature = (
        U16 if layout.bf16 else F32, U16, U16, U16, U16, F32, F32, U16,
        *(i32,) * 10, f32, i32,
    )  # fmt: skip
    return Kernel(gemm, signature, threads=THREADS, shared=max(STAGES * stage_bytes, tile_m * pitch * 4))


def gemm(
    device: Device,
    layout: Layout,
    out: Operand,
    a: Operand,
    b: Operand,
    shape: tuple[int, int, int],
    *,
    second: tuple[Operand, Operand, int] | None = None,
    bias: DeviceArray | None = None,
    addend: DeviceArray | None = None,
    residual: DeviceArray | None = None,
    scale: float = 1.0,
    accumulate: bool = False,
    splits: int = 1,
) -> None:
    """out [M, N] = (A B + A2 B2) * scale + bias, or added to what out holds; with `splits`, out [splits, M, N].
    shape: (M, N, K). second: A2, B2 and their K. addend: float32, in out's layout, added before rounding.
    residual: in out's layout, added after rounding. bias, addend and residual go with bfloat16 outputs, scale
    and accumulate with float32 ones.
    """
    M, N, K = shape
    a2, b2, K2 = second if second is not None else (a, b, 0)
    steps = -(-K // DEPTH) + -(-K2 // DEPTH)
    gemm_kernel(layout)(
        device,
        (-(-N // layout.tile_n), -(-M // layout.tile_m), splits),
        out.array, a.array, b.array, a2.array, b2.array,
        device.nothing(np.float32) if bias is None else bias,
        device.nothing(np.float32) if addend is None else addend,
        device.nothing(np.uint16) if residual is None else residual,
        out.leading, a.leading, b.leading, a2.leading, b2.leading, M, N, K, K2,
        -(-steps // splits), scale, int(accumulate),
    )  # fmt: skip
