"""The instructions that kernels call by name: those of the GPU, or under NUMBA_ENABLE_CUDASIM their twins.

Kernels import from here, so that one source runs on both.
"""

from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    from nf4tui.cuda_kernels import simt_install
    from nf4tui.cuda_kernels.ptx_sim import (
        bits_to_float,
        copy_async,
        copy_async_commit,
        exp,
        exp2,
        ldmatrix,
        ldmatrix_transposed,
        load_128,
        log,
        make_copy_async_wait,
        mma_bf16,
        pack_bf16,
        shared_address,
        store_32,
        store_128,
        store_shared_32,
        store_shared_64,
    )

    simt_install.install()
else:
    from nf4tui.cuda_kernels.ptx_gpu import (
        bits_to_float,
        copy_async,
        copy_async_commit,
        exp,
        exp2,
        ldmatrix,
        ldmatrix_transposed,
        load_128,
        log,
        make_copy_async_wait,
        mma_bf16,
        pack_bf16,
        shared_address,
        store_32,
        store_128,
        store_shared_32,
        store_shared_64,
    )

__all__ = [
    "bits_to_float",
    "copy_async",
    "copy_async_commit",
    "exp",
    "exp2",
    "ldmatrix",
    "ldmatrix_transposed",
    "load_128",
    "log",
    "make_copy_async_wait",
    "mma_bf16",
    "pack_bf16",
    "shared_address",
    "store_32",
    "store_128",
    "store_shared_32",
    "store_shared_64",
]
