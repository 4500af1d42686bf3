"""Generation of one sequence with a key/value cache.

A layer is the forward of attention_block.py and mlp_block.py, save that keys and values of earlier positions
come from the cache.

Memory: the cache, 2 * L * K * max_tokens * d values of the work dtype, allocated at the start.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.reference.attention import attend, future_mask
from nf4tui.reference.mlp_block import mlp_block_forward
from nf4tui.reference.nf4_linear import LoraOperands
from nf4tui.reference.projection import Pass, no_tap, project
from nf4tui.reference.qwen2 import Qwen2Reference
from nf4tui.reference.rms_norm import rms_norm_forward
from nf4tui.reference.rope import rope_forward
from nf4tui.reference.rounding import Point

Array = NDArray[Any]

PREFILL = 256


class ReferenceDecoder:
    """Holds the keys and values of the positions so far, [L, K, max_tokens, d] each."""

    def __init__(self, model: Qwen2Reference, lora: Mapping[str, LoraOperands], max_tokens: int) -> None:
        config = model.config
        self._model, self._lora, self._length = model, lora, 0
        shape = (config.num_hidden_layers, config.num_key_value_heads, max_tokens, config.head_dim)
        self._keys, self._values = np.zeros(shape, model.dtype), np.zeros(shape, model.dtype)

    def extend(self, ids: Sequence[int]) -> Array:
        """Appends `ids`; returns the logits [V] after the last of them. ValueError past max_tokens."""
        if not ids or self._length + len(ids) > self._keys.shape[2]:
            raise ValueError(f"{len(ids)} tokens do not fit after {self._length} of {self._keys.shape[2]}")
        tokens = np.asarray(ids, dtype=np.int64)
        size = self._model.config.vocab_size
        if tokens.min() < 0 or tokens.max() >= size:
            raise ValueError(f"a token is not in the vocabulary of {size}")
        # A long prompt in pieces: scores of PREFILL queries at a time instead of a square.
        for start in range(0, len(tokens), PREFILL):
            x = self._append(tokens[start : start + PREFILL])
        h, _ = self._model.final_norm(x[-1:])
        logits: Array = self._model.logits(h)[0]
        return logits

    def _append(self, tokens: NDArray[Any]) -> Array:
        """tokens [n] -> the last layer's output [n, D]."""
        model, count = self._model, len(tokens)
        cos, sin = model.rope_table(np.arange(self._length, self._length + count)[None])
        run = Pass(model.parameters, model.rnd, (1, count), [], cos, sin, self._lora, None, no_tap)
        future = future_mask(count, model.dtype)
        x = model.embed(tokens)
        for layer in range(model.config.num_hidden_layers):
            x, _ = mlp_block_forward(run, layer, self._attention(run, layer, x, future))
        self._length += count
        return x

    def _attention(self, run: Pass, layer: int, x: Array, future: Array) -> Array:
        """attention_block_forward with a cache: x [n, D] -> r [n, D]."""
        config, rnd, count = self._model.config, run.rnd, len(x)
        first, last = self._length, self._length + count
        n, _ = rms_norm_forward(x, run.parameters.attn_norms[layer], config.rms_norm_eps, rnd)
        heads = (1, count, -1, config.head_dim)
        q = rope_forward(project(run, layer, "q_proj", n)[0].reshape(heads), run.cos, run.sin, rnd)[0]
        k = rope_forward(project(run, layer, "k_proj", n)[0].reshape(heads), run.cos, run.sin, rnd)[0]
        v = project(run, layer, "v_proj", n)[0].reshape(heads)[0]
        self._keys[layer, :, first:last] = k.swapaxes(0, 1)
        self._values[layer, :, first:last] = v.swapaxes(0, 1)
        queries = q.reshape(count, config.num_key_value_heads, -1, config.head_dim).transpose(1, 2, 0, 3)
        context, _ = attend(queries, self._keys[layer, :, :last], self._values[layer, :, :last], future, rnd)
        flat = rnd(context, Point.CONTEXT).transpose(2, 0, 1, 3).reshape(count, -1)
        return rnd(x + project(run, layer, "o_proj", flat)[0], Point.RESIDUAL)
