"""AdamW with clipping: reference/adamw.py and reference/reductions.py on the GPU, in float32.

The gradients of all adapters lie in one array, and so do the weights and both moments. Two kernels reduce the
gradients: a sum of squares a block in float64, then one block over those. The last one writes what the update
multiplies gradients by: the clipping factor, or 0 with `nonfinite` counted, and then nothing is changed.
Nothing of it depends on the host, so a step can be captured once and replayed.
"""

import math

import numpy as np
from numba import cuda, float32, float64, int32
from numpy.typing import NDArray

from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, F64, I32, Kernel
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.engine import Update

THREADS = 256
BLOCKS = 256  # of the first reduction at most: what the second one sums, a thread each

# Settings of an update, in float32 array `settings`.
# 1 - beta is formed in float64 like them: from a float32 beta2 = 0.999 it would be off by 5e-5.
CLIP, DECAY, BETA1, REST1, BETA2, REST2, EPS, STEP_SIZE, ROOT_CORRECTION, SETTINGS = range(10)
# Results in float64 array `results`: norm before clipping; and in int32 array `counts`: non-finite values.


def _partial(sums, bad, g, blocks):
    shared = cuda.shared.array(THREADS, float64)
    counts = cuda.shared.array(THREADS, int32)
    total = float64(0)
    count = int32(0)
    for i in range(cuda.blockIdx.x * THREADS + cuda.threadIdx.x, g.size, blocks * THREADS):
        value = float64(g[i])
        if math.isfinite(value):
            total += value * value
        else:
            count += 1
    _reduce(shared, counts, total, count)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = shared[0]
        bad[cuda.blockIdx.x] = counts[0]


@cuda.jit(device=True)
def _reduce(shared, counts, total, count):
    """The block's sums, in a fixed order, in element 0 of both."""
    shared[cuda.threadIdx.x] = total
    counts[cuda.threadIdx.x] = count
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if cuda.threadIdx.x < half:
            shared[cuda.threadIdx.x] += shared[cuda.threadIdx.x + half]
            counts[cuda.threadIdx.x] += counts[cuda.threadIdx.x + half]
        cuda.syncthreads()
        half //= 2


def _finish(norm, nonfinite, factor, sums, bad, settings, blocks):
    shared = cuda.shared.array(THREADS, float64)
    counts = cuda.shared.array(THREADS, int32)
    total = float64(0)
    count = int32(0)
    if cuda.threadIdx.x < blocks:
        total, count = sums[cuda.threadIdx.x], bad[cuda.threadIdx.x]
    _reduce(shared, counts, total, count)
    if cuda.threadIdx.x == 0:
        n = math.sqrt(shared[0])
        norm[0] = n
        nonfinite[0] = counts[0]
        clip = float64(settings[CLIP])
        scale = float64(1)
        if clip > 0:
            scale = min(float64(1), clip / (n + 1e-6))
        factor[0] = float32(scale)


def _update(p, m, v, g, factor, nonfinite, settings):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < p.size and nonfinite[0] == 0:
        gradient = g[i] * factor[0]
        first = m[i] * settings[BETA1] + settings[REST1] * gradient
        second = v[i] * settings[BETA2] + settings[REST2] * (gradient * gradient)
        m[i] = first
        v[i] = second
        denominator = math.sqrt(second) / settings[ROOT_CORRECTION] + settings[EPS]
        p[i] = p[i] * settings[DECAY] - first / denominator * settings[STEP_SIZE]


def settings_of(update: Update, t: int) -> NDArray[np.float32]:
    """[SETTINGS] of the t-th update applied; formed in float64."""
    values = np.zeros(SETTINGS, np.float32)
    values[CLIP], values[EPS] = update.clip, update.eps
    values[DECAY] = 1 - update.lr * update.weight_decay
    values[BETA1], values[REST1] = update.beta1, 1 - update.beta1
    values[BETA2], values[REST2] = update.beta2, 1 - update.beta2
    values[STEP_SIZE] = update.lr / (1 - update.beta1**t)
    values[ROOT_CORRECTION] = math.sqrt(1 - update.beta2**t)
    return values


PARTIAL = Kernel(_partial, (F64, I32, F32, i32), threads=THREADS)
FINISH = Kernel(_finish, (F64, I32, F32, F64, I32, F32, i32), threads=THREADS)
UPDATE = Kernel(_update, (F32, F32, F32, F32, F32, I32, F32), threads=THREADS)


def gradient_norm(
    device: Device,
    norm: DeviceArray,
    nonfinite: DeviceArray,
    factor: DeviceArray,
    sums: DeviceArray,
    bad: DeviceArray,
    g: DeviceArray,
    settings: DeviceArray,
) -> None:
    """norm [1] float64 over the finite values of g, nonfinite [1] how many are not, factor [1] for clipping.
    sums [BLOCKS] float64, bad [BLOCKS] int32: scratch."""
    blocks = min(BLOCKS, -(-g.size // (8 * THREADS)))
    PARTIAL(device, (blocks,), sums, bad, g, blocks)
    FINISH(device, (1,), norm, nonfinite, factor, sums, bad, settings, blocks)


def adamw_update(
    device: Device,
    p: DeviceArray,
    m: DeviceArray,
    v: DeviceArray,
    g: DeviceArray,
    factor: DeviceArray,
    nonfinite: DeviceArray,
    settings: DeviceArray,
) -> None:
    """One update in place of all weights, unless a gradient was not finite."""
    UPDATE(device, (-(-p.size // THREADS),), p, m, v, g, factor, nonfinite, settings)
