"""bfloat16 values in memory, as float32 in registers. Arrays hold the bits as uint16."""

from numba import cuda, uint16, uint32

from nf4tui.cuda_kernels.ptx import bits_to_float, pack_bf16


@cuda.jit(device=True)
def load_bf16(array, index):
    """array[index], exactly."""
    return bits_to_float(uint32(array[index]) << uint32(16))


@cuda.jit(device=True)
def store_bf16(array, index, value):
    """Rounds to the nearest, ties to even."""
    array[index] = uint16(pack_bf16(value, value) & uint32(0xFFFF))


@cuda.jit(device=True)
def round_bf16(value):
    """`value` as it would be read back."""
    return bits_to_float(pack_bf16(value, value) << uint32(16))
