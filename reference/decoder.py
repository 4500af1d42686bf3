"""Generation of one sequence with a key/value cache.

Memory: the cache, 2 * L * max_tokens * K * d values of the work dtype, allocated at the start.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.lora import projection_path
from nf4tui.reference.attention import attend
from nf4tui.reference.cross_entropy import head_logits
from nf4tui.reference.embedding import embedding_forward
from nf4tui.reference.nf4_linear import LoraOperands, nf4_linear_forward
from nf4tui.reference.qwen2 import Qwen2Reference
from nf4tui.reference.rms_norm import rms_norm_forward
from nf4tui.reference.rope import rope_forward, rope_table
from nf4tui.reference.rounding import Point
from nf4tui.reference.swiglu import swiglu_forward

Array = NDArray[Any]


class ReferenceDecoder:
    """Holds the keys and values of the positions so far, [L, K, max_tokens, d] each."""

    def __init__(self, model: Qwen2Reference, lora: Mapping[str, LoraOperands], max_tokens: int) -> None:
        config = model.config
        self._model, self._lora, self._length = model, lora, 0
        shape = (config.num_hidden_layers, config.num_key_value_heads, max_tokens, config.head_dim)
        self._keys, self._values = np.zeros(shape, model.dtype), np.zeros(shape, model.dtype)

    def extend(self, ids: Sequence[int]) -> Array:
        """Appends `ids`; returns the logits [V] after the last of them. ValueError past max_tokens."""
        model, first, last = self._model, self._length, self._length + len(ids)
        if not ids or last > self._keys.shape[2]:
            raise ValueError(f"{len(ids)} tokens do not fit after {first} of {self._keys.shape[2]}")
        config = model.config
        tokens = np.asarray(ids, dtype=np.int64)
        x = embedding_forward(tokens, model.parameters.source.embedding, model.dtype, model.rnd)
        table = rope_table(
            np.arange(first, last)[None], config.head_dim, config.rope_theta, model.dtype, model.rnd
        )
        for layer in range(config.num_hidden_layers):
            x = self._layer(layer, x, table, first, last)
        self._length = last
        h, _ = model.final_norm(x[-1:])
        logits: Array = head_logits(h, model.parameters.source.head, model.rnd)[0]
        return logits

    def _layer(self, layer: int, x: Array, table: tuple[Array, Array], first: int, last: int) -> Array:
        model, config = self._model, self._model.config
        kv_heads, width, count = config.num_key_value_heads, config.head_dim, last - first
        eps, rnd = config.rms_norm_eps, model.rnd
        n, _ = rms_norm_forward(x, model.parameters.attn_norms[layer], eps, rnd)
        q = rope_forward(self._project(layer, "q_proj", n).reshape(1, count, -1, width), *table, rnd)[0]
        k = rope_forward(self._project(layer, "k_proj", n).reshape(1, count, -1, width), *table, rnd)[0]
        v = self._project(layer, "v_proj", n).reshape(count, -1, width)
        self._keys[layer, :, first:last] = k.swapaxes(0, 1)
        self._values[layer, :, first:last] = v.swapaxes(0, 1)
        queries = q.reshape(count, kv_heads, -1, width).transpose(1, 2, 0, 3)
        context, _ = attend(queries, self._keys[layer, :, :last], self._values[layer, :, :last], first, rnd)
        context = rnd(context, Point.CONTEXT).transpose(2, 0, 1, 3).reshape(count, -1)
        r = rnd(x + self._project(layer, "o_proj", context), Point.RESIDUAL)
        m, _ = rms_norm_forward(r, model.parameters.mlp_norms[layer], eps, rnd)
        y = swiglu_forward(self._project(layer, "gate_proj", m), self._project(layer, "up_proj", m), rnd)
        return rnd(r + self._project(layer, "down_proj", y), Point.RESIDUAL)

    def _project(self, layer: int, name: str, x: Array) -> Array:
        parameters = self._model.parameters
        weight, bias = parameters.matrix(layer, name), parameters.bias(layer, name)
        lora = self._lora.get(projection_path(layer, name))
        return nf4_linear_forward(x, weight, bias, lora, None, self._model.rnd)[0]
