"""The whole model over one batch shape [B, T], forward and backward: reference/qwen2.py on the GPU.

    x = embedding(ids);   each layer: layers.py;   h = rms_norm(x);   loss: head.py

A pass only launches and fills: nothing is read back, and everything that differs between batches is in buffers, so
that a pass can be recorded once for its shape.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.cuda_kernels.adapters import DeviceAdapters
from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.dropout import Dropout
from nf4tui.cuda_kernels.embedding import embedding_forward
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.head import Head
from nf4tui.cuda_kernels.layers import Activations, Layers, rows
from nf4tui.cuda_kernels.parameters import DeviceParameters
from nf4tui.cuda_kernels.projection import Projections, Run
from nf4tui.cuda_kernels.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.cuda_kernels.taps import Tap, no_tap
from nf4tui.engine import PADDING, Batch


class Qwen2Passes:
    """Buffers for B * T = N tokens, and the passes over them. recompute: layers.py's second way."""

    def __init__(
        self,
        device: Device,
        memory: Memory,
        parameters: DeviceParameters,
        adapters: DeviceAdapters,
        shape: tuple[int, int],
        *,
        recompute: bool,
    ) -> None:
        self.shape, self._device, self._parameters = shape, device, parameters
        self._config, self._recompute = parameters.config, recompute
        N, D, layers = shape[0] * shape[1], self._config.hidden_size, self._config.num_hidden_layers
        # One upload for all that a batch is: input_ids, targets, positions, starts.
        self._batch = memory.empty(4 * N, np.int32)
        self._ids, self.targets, positions, starts = (self._batch.part(i * N, N) for i in range(4))
        self._run = Run(shape, positions, starts)
        projections = Projections(device, memory, parameters, adapters, N)
        self._layers = Layers(device, memory, projections)
        self._hidden = [rows(memory, N, D) for _ in range(layers + 1)]
        kept = [Activations(memory, projections) for _ in range(1 if recompute else layers)]
        self._kept = kept * layers if recompute else kept
        self.h, self._d = rows(memory, N, D), rows(memory, N, D)
        self._rstd = memory.empty(N, np.float32)
        self.head = Head(device, memory, parameters, N)

    def load(self, batch: Batch) -> None:
        """Copies a batch of this shape into the buffers."""
        parts = batch.input_ids, batch.targets, batch.positions, document_starts(batch.document_ids)
        data = np.concatenate([np.asarray(part, np.int32).reshape(-1) for part in parts])
        self._device.upload(self._batch, data)

    def forward(self, dropout: Dropout | None = None, tap: Tap = no_tap) -> None:
        """Everything below the head: h [N, D]."""
        for _ in self.forward_by_layer(dropout, tap):
            pass

    def forward_by_layer(self, dropout: Dropout | None = None, tap: Tap = no_tap) -> Iterator[None]:
        """`forward`, stopping after every layer."""
        run = self._with(dropout, tap)
        N, D = self.shape[0] * self.shape[1], self._config.hidden_size
        table, x = self._parameters.embedding, self._hidden[0]
        embedding_forward(self._device, x.array, table.array, self._ids, D, D)
        tap("hidden.0", x, D)
        for layer, kept in enumerate(self._kept):
            self._layers.forward(run, layer, kept, self._hidden[layer + 1], self._hidden[layer])
            yield
        arrays = self.h.array, self._rstd, self._hidden[-1].array, self._parameters.final_norm
        rms_norm_forward(self._device, *arrays, N, D, D, self._config.rms_norm_eps)
        tap("final_norm", self.h, D)
        tap("final_norm.rstd", Operand(self._rstd, 1), 1)

    def backward(self, denominator: DeviceArray, dropout: Dropout | None = None, tap: Tap = no_tap) -> None:
        """Adds the gradients of sum(losses) / denominator to the adapters', after `forward` and head.loss.
        denominator: [1] float32 on the device."""
        for _ in self.backward_by_layer(denominator, dropout, tap):
            pass

    def backward_by_layer(
        self, denominator: DeviceArray, dropout: Dropout | None = None, tap: Tap = no_tap
    ) -> Iterator[None]:
        """`backward`, stopping after every layer."""
        run, d = self._with(dropout, tap), self._d
        N, D = self.shape[0] * self.shape[1], self._config.hidden_size
        self.head.backward(d, self.h, self.targets, denominator)
        tap("final_norm.grad", d, D)
        arrays = d.array, d.array, self._hidden[-1].array, self._parameters.final_norm, self._rstd, None
        rms_norm_backward(self._device, *arrays, N, D, D)
        # A layer that is computed again is not seen again.
        again = self._with(dropout, no_tap)
        for layer in reversed(range(len(self._kept))):
            kept, x = self._kept[layer], self._hidden[layer]
            if self._recompute:
                self._layers.forward(again, layer, kept, self._hidden[layer + 1], x)
            self._layers.backward(run, layer, kept, d, x)
            yield
        tap("hidden.0.grad", d, D)

    def _with(self, dropout: Dropout | None, tap: Tap) -> Run:
        return Run(self.shape, self._run.positions, self._run.starts, dropout, tap)


def document_starts(document_ids: NDArray[Any]) -> NDArray[np.int32]:
    """document_ids [B, T] -> the position at which each token's document begins, T on padding."""
    B, T = document_ids.shape
    begins = np.ones((B, T), np.bool_)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    starts = np.maximum.accumulate(np.where(begins, np.arange(T), 0), axis=1)
    return np.where(document_ids == PADDING, T, starts).astype(np.int32)
