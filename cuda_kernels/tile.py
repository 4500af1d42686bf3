"""Tiles of 16-bit values in shared memory: rows of tokens, copied in and read as tensor-core operands.

A row is cut into chunks of 16 bytes, whose place in the row depends on the row's number, so that the eight rows
that ldmatrix reads at a time lie in different banks.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda, int32, uint32

from nf4tui.cuda_kernels.ptx import copy_async, ldmatrix, ldmatrix_transposed


@cache
def permuted(chunks: int) -> Callable[..., Any]:
    """offset(row, chunk): bytes from the start of a tile with rows of `chunks` chunks, a power of two."""
    if chunks >= 8:

        @cuda.jit(device=True)
        def offset(row, chunk):
            return row * uint32(16 * chunks) + ((chunk ^ (row & uint32(7))) << uint32(4))
    else:
        rows_a_line = 8 // chunks  # that share 128 bytes
        shift = rows_a_line.bit_length() - 1

        @cuda.jit(device=True)
        def offset(row, chunk):
            moved = chunk ^ ((row >> uint32(shift)) & uint32(chunks - 1))
            return row * uint32(16 * chunks) + (moved << uint32(4))

    return offset


@cache
def row_loader(rows: int, width: int, threads: int) -> Callable[..., None]:
    """load(shared, array, first, end, start, leading): starts the copies of `width` values from column `start`
    of each of `rows` rows of `array` from `first` on; rows from `end` on are zeros."""
    chunks = width // 8
    rounds = -(-rows * chunks // threads)
    offset = permuted(chunks)

    @cuda.jit(device=True)
    def load(shared, array, first, end, start, leading):
        for turn in range(rounds):
            place = uint32(cuda.threadIdx.x) + uint32(turn * threads)
            row, chunk = place // uint32(chunks), place % uint32(chunks)
            if row < uint32(rows):
                at = int32(first) + int32(row)
                size = int32(0)
                index = int32(0)
                if at < end:
                    size = int32(16)
                    index = at * leading + start + int32(chunk * uint32(8))
                copy_async(uint32(shared + offset(row, chunk)), array, index, size)

    return load


@cache
def operand_loader(along_k: bool, tile: int, depth: int, threads: int) -> Callable[..., None]:
    """Starts the copies of one operand's part of a stage. along_k: a row of the tile is a row of the operand
    and runs along k; else it is one value of k."""
    chunks = depth // 8 if along_k else tile // 8
    rounds = tile * depth // 8 // threads
    offset = permuted(chunks)

    @cuda.jit(device=True)
    def load(shared, array, outer, k, outer_end, k_end, leading):
        for turn in range(rounds):
            place = uint32(cuda.threadIdx.x) + uint32(turn * threads)
            row, chunk = place // uint32(chunks), place % uint32(chunks)
            if along_k:
                at_row, rows = int32(outer + row), outer_end
                column, columns = int32(k + chunk * uint32(8)), k_end
            else:
                at_row, rows = int32(k + row), k_end
                column, columns = int32(outer + chunk * uint32(8)), outer_end
            size = int32(0)
            index = int32(0)
            if at_row < rows and column < columns:
                size = min(int32(16), (columns - column) * int32(2))
                index = at_row * leading + column
            copy_async(uint32(shared + offset(row, chunk)), array, index, size)

    return load


@cache
def left_fragment(width: int) -> Callable[..., Any]:
    """fragment(tile, row, k, lane): the A operand of rows row to row + 16 and columns 16 k to 16 k + 16."""
    offset = permuted(width // 8)

    @cuda.jit(device=True)
    def fragment(tile, row, k, lane):
        at = offset(uint32(row + (lane & uint32(15))), uint32(k * uint32(2) + (lane >> uint32(4))))
        return ldmatrix(uint32(tile + at))

    return fragment


@cache
def left_fragment_by_row(width: int) -> Callable[..., Any]:
    """fragment(tile, k, column, lane): tile rows as values of k. The A operand of columns column to column + 16
    as its rows, over tile rows 16 k to 16 k + 16."""
    offset = permuted(width // 8)

    @cuda.jit(device=True)
    def fragment(tile, k, column, lane):
        matrix, row = lane >> uint32(3), lane & uint32(7)
        at_row = k * uint32(16) + ((matrix >> uint32(1)) << uint32(3)) + row
        chunk = (column >> uint32(3)) + (matrix & uint32(1))
        return ldmatrix_transposed(uint32(tile + offset(uint32(at_row), uint32(chunk))))

    return fragment


@cache
def right_fragments(width: int) -> Callable[..., Any]:
    """fragments(tile, row, k, lane): tile rows as the columns of B. The operands of rows row to row + 8 (two
    registers) and row + 8 to row + 16 (two more), over columns 16 k to 16 k + 16."""
    offset = permuted(width // 8)

    @cuda.jit(device=True)
    def fragments(tile, row, k, lane):
        at_row = row + (lane & uint32(7)) + ((lane >> uint32(4)) << uint32(3))
        chunk = k * uint32(2) + ((lane >> uint32(3)) & uint32(1))
        return ldmatrix(uint32(tile + offset(uint32(at_row), uint32(chunk))))

    return fragments


@cache
def right_fragments_by_row(width: int) -> Callable[..., Any]:
    """fragments(tile, k, column, lane): tile rows as values of k. The operands of columns column to column + 8
    (two registers) and column + 8 to column + 16 (two more), over rows 16 k to 16 k + 16."""
    offset = permuted(width // 8)

    @cuda.jit(device=True)
    def fragments(tile, k, column, lane):
        matrix, row = lane >> uint32(3), lane & uint32(7)
        at_row = k * uint32(16) + ((matrix & uint32(1)) << uint32(3)) + row
        chunk = (column >> uint32(3)) + (matrix >> uint32(1))
        return ldmatrix_transposed(uint32(tile + offset(uint32(at_row), uint32(chunk))))

    return fragments
