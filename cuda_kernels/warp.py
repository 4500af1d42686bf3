"""Reductions over the 32 threads of a warp. All of them must call; every one gets the result."""

from numba import cuda

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_sum(value):
    """In a fixed order: the same bits each time."""
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, step)
    return value


@cuda.jit(device=True)
def warp_max(value):
    """NaN is not kept."""
    for step in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(FULL, value, step))
    return value
