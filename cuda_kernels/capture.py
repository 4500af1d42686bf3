"""A forward and backward pass with every tensor brought to the host: Engine.capture on a device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import float32_from_bf16
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.qwen2 import Qwen2Passes
from nf4tui.engine import Batch
from nf4tui.models.qwen2 import Qwen2Config

Taken = list[tuple[str, NDArray[Any]]]


def capture(
    device: Device, config: Qwen2Config, passes: Qwen2Passes, batch: Batch, denominator: DeviceArray
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every tap in the order computed, float32, [B, T, ...] but for `loss` and LoRA's gradients, a layer at a time.
    The adapters' gradients must be 0 before, and are those of the batch afterwards."""
    taken: Taken = []

    def tap(name: str, operand: Operand, width: int) -> None:
        taken.append((name, _on_host(device, config, batch.input_ids.shape, name, operand, width)))

    passes.load(batch)
    supervised = max(batch.supervised_tokens, 1)
    device.upload(denominator, np.array([supervised], np.float32))
    for _ in passes.forward_by_layer(tap=tap):
        yield from _emptied(taken)
    yield from _emptied(taken)
    passes.head.loss(passes.h, passes.targets)
    B, T = batch.input_ids.shape
    yield "logits", passes.head.logits(passes.h).reshape(B, T, -1)
    losses = device.download(passes.head.losses)
    yield "loss", np.asarray(losses.sum(dtype=np.float64) / supervised)
    gradient = passes.head.logits_gradient(passes.h, passes.targets, denominator)
    yield "logits.grad", gradient.reshape(B, T, -1)
    for _ in passes.backward_by_layer(denominator, tap=tap):
        yield from _emptied(taken)
    yield from _emptied(taken)


def _emptied(taken: Taken) -> Taken:
    found = list(taken)
    taken.clear()
    return found


def _on_host(
    device: Device, config: Qwen2Config, shape: tuple[int, ...], name: str, operand: Operand, width: int
) -> NDArray[np.float32]:
    data = device.download(operand.array)
    # What lies beyond the last row's width is nobody's.
    rows = data[: data.size // operand.leading * operand.leading].reshape(-1, operand.leading)[:, :width]
    values = float32_from_bf16(rows) if rows.dtype == np.uint16 else rows
    if ".grad_lora_" in name:
        return values
    if name.endswith(".rstd"):
        return values.reshape(shape)
    if ".context" in name or "_rope" in name:
        return values.reshape(*shape, -1, config.head_dim)
    return values.reshape(*shape, width)
