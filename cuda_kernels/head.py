"""LM head and loss: reference/cross_entropy.py on the GPU. The vocabulary is taken in chunks.

A first pass over the chunks finds every row's log-sum-exp; a second one computes the logits again and adds
d E to the gradient of h. The full logits [N, V] never exist on the device.
"""

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import float32_from_bf16
from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.cross_entropy import accumulate, cross_entropy_loss, logits_gradient
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand, gemm
from nf4tui.cuda_kernels.parameters import DeviceParameters, aligned
from nf4tui.cuda_kernels.projection import layout

LOGITS = 2**24  # of a chunk, at most


class Head:
    """For N tokens."""

    def __init__(self, device: Device, memory: Memory, parameters: DeviceParameters, tokens: int) -> None:
        self._device, self._parameters, self._tokens = device, parameters, tokens
        vocabulary, D = parameters.config.vocab_size, parameters.config.hidden_size
        self._chunk = min(aligned(vocabulary), max(64, LOGITS // tokens // 64 * 64))
        self._logits = memory.empty(tokens * self._chunk, np.float32)
        self._d = memory.empty(tokens * self._chunk, np.uint16)
        self._sum = memory.empty(tokens * D, np.float32)
        self._state = tuple(memory.empty(tokens, np.float32) for _ in range(4))
        self._lse = memory.empty(tokens, np.float32)
        self.losses = memory.empty(tokens, np.float32)

    def loss(self, h: Operand, targets: DeviceArray) -> None:
        """Every row's loss into `losses` [N], 0 where the target is ignored. targets [N] int32."""
        a, b, c, d = self._state
        for first, width in self._chunks():
            self._logits_of(h, first, width)
            accumulate(self._device, (a, b, c, d), self._logits, targets, first, width, self._chunk)
        cross_entropy_loss(self._device, self.losses, self._lse, (a, b, c, d), targets)

    def backward(self, dh: Operand, h: Operand, targets: DeviceArray, denominator: DeviceArray) -> None:
        """dh [N, D] of sum(losses) / denominator, after `loss` of the same h. denominator [1] float32."""
        D, N = self._parameters.config.hidden_size, self._tokens
        chunks = self._chunks()
        for number, (first, width) in enumerate(chunks):
            self._gradient_of(h, targets, denominator, first, width)
            last = number == len(chunks) - 1
            gemm(
                self._device,
                layout(N, D, b_rows=False, bf16=last),
                dh if last else Operand(self._sum, D),
                Operand(self._d, self._chunk),
                self._rows(first, width),
                (N, D, width),
                addend=self._sum if last and number > 0 else None,
                accumulate=not last and number > 0,
            )

    def logits(self, h: Operand) -> NDArray[np.float32]:
        """[N, V] on the host: for generation and comparison only."""
        out = np.empty((self._tokens, self._parameters.config.vocab_size), np.float32)
        for first, width in self._chunks():
            self._logits_of(h, first, width)
            part = self._device.download(self._logits).reshape(self._tokens, self._chunk)
            out[:, first : first + width] = part[:, :width]
        return out

    def logits_gradient(
        self, h: Operand, targets: DeviceArray, denominator: DeviceArray
    ) -> NDArray[np.float32]:
        """[N, V] on the host, after `loss` of the same h: for comparison only."""
        out = np.empty((self._tokens, self._parameters.config.vocab_size), np.float32)
        for first, width in self._chunks():
            self._gradient_of(h, targets, denominator, first, width)
            part = self._device.download(self._d).reshape(self._tokens, self._chunk)
            out[:, first : first + width] = float32_from_bf16(part[:, :width])
        return out

    def _chunks(self) -> list[tuple[int, int]]:
        """(first column, width) of each."""
        size = self._parameters.config.vocab_size
        return [(first, min(self._chunk, size - first)) for first in range(0, size, self._chunk)]

    def _rows(self, first: int, width: int) -> Operand:
        head = self._parameters.head
        return Operand(head.array.part(first * head.leading, width * head.leading), head.leading)

    def _logits_of(self, h: Operand, first: int, width: int) -> None:
        shape, D = layout(self._tokens, width, bf16=False), self._parameters.config.hidden_size
        out = Operand(self._logits, self._chunk)
        gemm(self._device, shape, out, h, self._rows(first, width), (self._tokens, width, D))

    def _gradient_of(
        self, h: Operand, targets: DeviceArray, denominator: DeviceArray, first: int, width: int
    ) -> None:
        self._logits_of(h, first, width)
        arrays = self._d, self._logits, self._lse, targets, denominator
        logits_gradient(self._device, *arrays, first, width, self._chunk)
