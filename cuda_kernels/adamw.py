"""AdamW with clipping: reference/adamw.py and reference/reductions.py on the GPU, in float32.

The gradients of all adapters lie in one array, and so do the weights and both moments. Two kernels reduce the
gradients: a sum of squares a block in float64, then one block over those, which also looks at the loss. Where
anything is not finite, the update changes nothing. Nothing of it depends on the host, so that a step can be
captured once and replayed, and its results are read once.
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
# Results of a step in float64 array `results`: the sum of the losses, the norm before clipping over the finite values,
# how many values are not finite (loss and gradients), and what the update multiplies gradients by.
LOSS, NORM, NONFINITE, FACTOR, RESULTS = range(5)


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


def _finish(results, sums, bad, settings, blocks):
    shared = cuda.shared.array(THREADS, float64)
    counts = cuda.shared.array(THREADS, int32)
    total = float64(0)
    count = int32(0)
    if cuda.threadIdx.x < blocks:
        total, count = sums[cuda.threadIdx.x], bad[cuda.threadIdx.x]
    _reduce(shared, counts, total, count)
    if cuda.threadIdx.x == 0:
        n = math.sqrt(shared[0])
        count = counts[0]
        if not math.isfinite(results[LOSS]):
            count += 1
        results[NORM] = n
        results[NONFINITE] = float64(count)
        clip = float64(settings[CLIP])
        scale = float64(1)
        if clip > 0:
            scale = min(float64(1), clip / (n + 1e-6))
        results[FACTOR] = scale


def _add_losses(results, losses):
    shared = cuda.shared.array(THREADS, float64)
    counts = cuda.shared.array(THREADS, int32)
    total = float64(0)
    for i in range(cuda.threadIdx.x, losses.size, THREADS):
        total += float64(losses[i])
    _reduce(shared, counts, total, int32(0))
    if cuda.threadIdx.x == 0:
        results[LOSS] += shared[0]


def _update(p, m, v, g, results, settings):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < p.size and results[NONFINITE] == 0:
        gradient = g[i] * float32(results[FACTOR])
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
FINISH = Kernel(_finish, (F64, F64, I32, F32, i32), threads=THREADS)
ADD_LOSSES = Kernel(_add_losses, (F64, F32), threads=THREADS)
UPDATE = Kernel(_update, (F32, F32, F32, F32, F64, F32), threads=THREADS)


def add_losses(device: Device, results: DeviceArray, losses: DeviceArray) -> None:
    """results[LOSS] += the sum of losses [n] float32, in float64."""
    ADD_LOSSES(device, (1,), results, losses)


def gradient_norm(
    device: Device,
    results: DeviceArray,
    sums: DeviceArray,
    bad: DeviceArray,
    g: DeviceArray,
    settings: DeviceArray,
) -> None:
    """results [RESULTS] float64 of g and of the loss that is there. sums [BLOCKS] float64, bad [BLOCKS] int32:
    scratch. settings: settings_of."""
    blocks = min(BLOCKS, -(-g.size // (8 * THREADS)))
    PARTIAL(device, (blocks,), sums, bad, g, blocks)
    FINISH(device, (1,), results, sums, bad, settings, blocks)


def adamw_update(
    device: Device,
    p: DeviceArray,
    m: DeviceArray,
    v: DeviceArray,
    g: DeviceArray,
    results: DeviceArray,
    settings: DeviceArray,
) -> None:
    """One update in place of all weights, unless something was not finite."""
    UPDATE(device, (-(-p.size // THREADS),), p, m, v, g, results, settings)
