"""Generation of one sequence with a key/value cache: reference/decoder.py on the GPU.

New tokens are taken in pieces of a few fixed sizes, the last one filled up with tokens at position -1, which read
the table's first row, are not kept and see nothing. Every size has its buffers and, once used twice, its recording.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.cuda_kernels.adapters import DeviceAdapters
from nf4tui.cuda_kernels.attention_decode import append_rows, attention_decode
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.embedding import embedding_forward
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.head import Head
from nf4tui.cuda_kernels.layers import Activations, Layers, rows
from nf4tui.cuda_kernels.parameters import DeviceParameters
from nf4tui.cuda_kernels.projection import Projections, Run
from nf4tui.cuda_kernels.replay import Replayed
from nf4tui.cuda_kernels.rms_norm import rms_norm_forward

PIECES = (1, 16, 256)


class CudaDecoder:
    """Holds the keys and values of the positions so far, [max_tokens, K * d] a layer. Raises ValueError for more
    positions than the model has."""

    def __init__(
        self, device: Device, parameters: DeviceParameters, adapters: DeviceAdapters, max_tokens: int
    ) -> None:
        if not 0 < max_tokens <= parameters.positions:
            raise ValueError(f"{max_tokens} positions, where the model has {parameters.positions}")
        self._device, self._parameters, self._adapters = device, parameters, adapters
        self._max_tokens, self._length = max_tokens, 0
        config = parameters.config
        size = max_tokens * config.num_key_value_heads * config.head_dim
        layers = config.num_hidden_layers
        self._cache = device.empty(2 * layers * size, np.uint16)
        self._keys, self._values = (
            [self._cache.part((2 * layer + part) * size, size) for layer in range(layers)] for part in (0, 1)
        )
        self._pieces: dict[int, _Piece] = {}

    def extend(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Appends `ids`; returns the logits [V] after the last of them. ValueError past max_tokens."""
        if not ids or self._length + len(ids) > self._max_tokens:
            raise ValueError(f"{len(ids)} tokens do not fit after {self._length} of {self._max_tokens}")
        tokens = np.asarray(ids, np.int64)
        size = self._parameters.config.vocab_size
        if tokens.min() < 0 or tokens.max() >= size:
            raise ValueError(f"a token is not in the vocabulary of {size}")
        for start in range(0, len(tokens), PIECES[-1]):
            part = tokens[start : start + PIECES[-1]]
            piece = self._piece(next(n for n in PIECES if n >= len(part)))
            piece.run(part, self._length)
            self._length += len(part)
        return piece.logits(len(part) - 1)

    def close(self) -> None:
        """Gives the memory back."""
        for piece in self._pieces.values():
            piece.close()
        self._pieces.clear()
        self._device.free(self._cache)

    def _piece(self, tokens: int) -> "_Piece":
        if tokens not in self._pieces:
            arguments = self._device, self._parameters, self._adapters, self._keys, self._values
            self._pieces[tokens] = _Piece(*arguments, tokens)
        return self._pieces[tokens]


class _Piece:
    """A pass over `tokens` new tokens."""

    def __init__(
        self,
        device: Device,
        parameters: DeviceParameters,
        adapters: DeviceAdapters,
        keys: list[DeviceArray],
        values: list[DeviceArray],
        tokens: int,
    ) -> None:
        self._device, self._parameters, self._tokens = device, parameters, tokens
        self._keys, self._values = keys, values
        self._taken: list[DeviceArray] = []
        projections = Projections(device, self, parameters, adapters, tokens)
        self._layers = Layers(device, self, projections)
        self._kept = Activations(self, projections)
        D = parameters.config.hidden_size
        self._x, self._y, self._h, self._last = (
            rows(self, count, D) for count in (tokens, tokens, tokens, 1)
        )
        self._rstd = self.empty(tokens, np.float32)
        # Where each token is, -1 for none; and the same for the RoPE table, with 0 for none.
        self._ids, self._positions, self._places = (self.empty(tokens, np.int32) for _ in range(3))
        self._head = Head(device, self, parameters, 1)
        self._work = Replayed(device, self._launch)

    def empty(self, size: int, dtype: Any) -> DeviceArray:
        """Memory (arena.py) that is given back by `close`."""
        self._taken.append(self._device.empty(size, dtype))
        return self._taken[-1]

    def close(self) -> None:
        for array in self._taken:
            self._device.free(array)
        self._taken.clear()

    def run(self, tokens: NDArray[Any], first: int) -> None:
        """Takes tokens [n] at positions first to first + n into the cache."""
        n = len(tokens)
        ids, positions = np.zeros(self._tokens, np.int32), np.full(self._tokens, -1, np.int32)
        ids[:n], positions[:n] = tokens, np.arange(first, first + n)
        self._device.upload(self._ids, ids)
        self._device.upload(self._positions, positions)
        self._device.upload(self._places, np.maximum(positions, 0))
        self._work()

    def logits(self, token: int) -> NDArray[np.float32]:
        """[V] after one of the tokens."""
        D = self._parameters.config.hidden_size
        return self._head.logits(Operand(self._h.array.part(token * D, D), D))[0]

    def _launch(self) -> None:
        config, run = self._parameters.config, Run((1, self._tokens), self._places, self._positions)
        heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        D, kept, x, y = config.hidden_size, self._kept, self._x, self._y
        embedding_forward(self._device, x.array, self._parameters.embedding.array, self._ids, D, D)
        for layer, (keys, values) in enumerate(zip(self._keys, self._values, strict=True)):
            self._layers.queries_keys_values(run, layer, kept, x)
            append_rows(self._device, keys, kept.k.array, self._positions, kv_heads * d)
            append_rows(self._device, values, kept.v.array, self._positions, kv_heads * d)
            arrays = kept.context.array, kept.q.array, keys, values, self._positions
            attention_decode(self._device, *arrays, heads, kv_heads, d)
            self._layers.after_attention(run, layer, kept, y, x)
            x, y = y, x
        final = self._h.array, self._rstd, x.array, self._parameters.final_norm
        rms_norm_forward(self._device, *final, self._tokens, D, D, config.rms_norm_eps)
