"""Cross-entropy over a vocabulary taken in chunks: reference/cross_entropy.py on the GPU.

The chunk's logits come from gemm.py in float32, [N, chunk]. A first pass keeps each row's running maximum and
sum, and picks the target's logit; a second pass, over the logits computed anew, turns them into the
gradient (softmax - onehot) / denominator as bfloat16, the operand of dh += d E. Full logits never exist.

A warp takes a row. A sum over 152,000 terms is kept in two float32 (the error of every addition is added up
beside it: Neumaier 1974), since one alone would cost the loss its fourth digit.
"""

from numba import cuda, float32, int32

from nf4tui.cuda_kernels.bf16 import store_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.kernel import F32, I32, U16, Kernel
from nf4tui.cuda_kernels.kernel import int32 as i32
from nf4tui.cuda_kernels.ptx import exp, log
from nf4tui.cuda_kernels.warp import warp_max, warp_sum

THREADS = 128
ROWS = THREADS // 32
IGNORE = -100
LOWEST = -3.4e38


def _accumulate(highest, total, rest, target_logit, logits, targets, rows, first, width, leading):
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= rows:
        return
    target = targets[row]
    if target == IGNORE:
        return
    start = row * leading
    before = float32(LOWEST)
    if first > 0:
        before = highest[row]
    peak = before
    for i in range(lane, width, 32):
        peak = max(peak, logits[start + i])
    peak = warp_max(peak)
    part = float32(0)
    lost = float32(0)
    for i in range(lane, width, 32):
        term = exp(logits[start + i] - peak)
        moved = part + term
        lost += (part - moved) + term if part >= term else (term - moved) + part
        part = moved
    part, lost = warp_sum(part), warp_sum(lost)
    if lane == 0:
        if first > 0:
            shrink = exp(before - peak)
            old = total[row] * shrink
            moved = old + part
            lost += rest[row] * shrink + ((old - moved) + part if old >= part else (part - moved) + old)
            part = moved
        highest[row], total[row], rest[row] = peak, part, lost
        at = target - first
        if 0 <= at < width:
            target_logit[row] = logits[start + at]


def _loss(losses, lse, highest, total, rest, target_logit, targets, rows):
    row = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if row < rows:
        if targets[row] == IGNORE:
            losses[row], lse[row] = float32(0), float32(0)
        else:
            log_sum = highest[row] + log(total[row] + rest[row])
            lse[row] = log_sum
            losses[row] = log_sum - target_logit[row]


def _gradient(d, logits, lse, targets, denominator, rows, first, width, leading):
    place = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row, i = place // width, place % width
    if row < rows:
        target = targets[row]
        value = float32(0)
        if target != IGNORE:
            value = exp(logits[row * leading + i] - lse[row])
            if int32(i) == target - first:
                value -= float32(1)
            value /= denominator[0]
        store_bf16(d, row * leading + i, value)


ACCUMULATE = Kernel(_accumulate, (F32, F32, F32, F32, F32, I32, i32, i32, i32, i32), threads=THREADS)
LOSS = Kernel(_loss, (F32, F32, F32, F32, F32, F32, I32, i32), threads=THREADS)
GRADIENT = Kernel(_gradient, (U16, F32, F32, I32, F32, i32, i32, i32, i32), threads=THREADS)


def accumulate(
    device: Device,
    state: tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray],
    logits: DeviceArray,
    targets: DeviceArray,
    first: int,
    width: int,
    leading: int,
) -> None:
    """Takes columns first to first + width of the logits into `state`: each row's maximum, sum, rest of the sum
    and target logit, [N] float32 each. Chunks come in order, from column 0 on. targets [N] int32."""
    rows = targets.size
    ACCUMULATE(device, (-(-rows // ROWS),), *state, logits, targets, rows, first, width, leading)


def cross_entropy_loss(
    device: Device,
    losses: DeviceArray,
    lse: DeviceArray,
    state: tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray],
    targets: DeviceArray,
) -> None:
    """losses and lse [N] float32 once all chunks were taken in; 0 where the target is ignored."""
    LOSS(device, (-(-targets.size // THREADS),), losses, lse, *state, targets, targets.size)


def logits_gradient(
    device: Device,
    d: DeviceArray,
    logits: DeviceArray,
    lse: DeviceArray,
    targets: DeviceArray,
    denominator: DeviceArray,
    first: int,
    width: int,
    leading: int,
) -> None:
    """d [N, width] bfloat16 of a chunk's logits; zeros in ignored rows. denominator [1] float32."""
    rows = targets.size
    blocks = -(-rows * width // THREADS)
    GRADIENT(device, (blocks,), d, logits, lse, targets, denominator, rows, first, width, leading)
