"""The whole causal model, Qwen2 (arXiv 2407.10671), forward and backward.

    x = embedding(ids);   each layer: attention_block.py, then mlp_block.py;   h = rms_norm(x)
    loss = sum of cross_entropy(h, head) / denominator

`tap(name, array)` is called with every intermediate tensor that the kernels store, by token [N, ...] with
N = B * T, under the names of docs/architecture.md. A layer at a time, so that a capture can stream.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.engine import IGNORE_INDEX, Batch
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.attention import document_spans
from nf4tui.reference.attention_block import AttentionSaved, attention_block_backward, attention_block_forward
from nf4tui.reference.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    head_logits,
    logits_gradient,
)
from nf4tui.reference.embedding import embedding_forward
from nf4tui.reference.mlp_block import MlpSaved, mlp_block_backward, mlp_block_forward
from nf4tui.reference.nf4_linear import LoraOperands
from nf4tui.reference.parameters import Parameters
from nf4tui.reference.projection import Dropout, Gradients, Pass, Tap, no_tap
from nf4tui.reference.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.reference.rope import rope_table
from nf4tui.reference.rounding import EXACT, Point, Rounding

Array = NDArray[Any]
LayerSaved = tuple[AttentionSaved, MlpSaved]


class Qwen2Reference:
    """The model over frozen parameters. dtype: of all arithmetic. rnd: EXACT, or BF16 (float32 only)."""

    def __init__(
        self,
        weights: ModelWeights,
        lora: LoraConfig | None,
        dtype: DTypeLike = np.float32,
        rnd: Rounding = EXACT,
    ) -> None:
        self.config = weights.config
        self.lora = lora
        self.parameters = Parameters(weights, dtype, rnd)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.rnd = rnd

    def lora_operands(self, adapters: Mapping[str, Array]) -> dict[str, LoraOperands]:
        """The adapters (by tensor name) as operands by projection path."""
        if self.lora is None:
            return {}
        paths = [name.removesuffix(".lora_A") for name in adapters if name.endswith(".lora_A")]
        return {
            path: LoraOperands.from_master(
                adapters[f"{path}.lora_A"],
                adapters[f"{path}.lora_B"],
                self.lora.scaling_of(path),
                self.rnd,
            )
            for path in paths
        }

    def begin(
        self,
        batch: Batch,
        lora: Mapping[str, LoraOperands],
        dropout: Dropout | None = None,
        tap: Tap = no_tap,
    ) -> Pass:
        """Prepares a pass over `batch`. Raises InputError for a token outside the vocabulary."""
        self._check_tokens(batch)
        cos, sin = self.rope_table(batch.positions)
        rows, length = batch.input_ids.shape
        spans = document_spans(batch.document_ids)
        return Pass(self.parameters, self.rnd, (rows, length), spans, cos, sin, lora, dropout, tap)

    def _check_tokens(self, batch: Batch) -> None:
        """NumPy would read a negative id from the end of the table, and a target beyond it as no target."""
        size = self.config.vocab_size
        for what, ids in (
            ("input_ids", batch.input_ids),
            ("labels", batch.labels[batch.labels != IGNORE_INDEX]),
        ):
            wrong = (ids < 0) | (ids >= size)
            if wrong.any():
                token = int(ids[wrong][0])
                raise InputError(f"{what}: token {token} is not in the model's vocabulary of {size}")

    def rope_table(self, positions: NDArray[Any]) -> tuple[Array, Array]:
        """positions [...] -> cos, sin [..., d/2]."""
        return rope_table(positions, self.config.head_dim, self.config.rope_theta, self.dtype, self.rnd)

    def embed(self, ids: NDArray[Any]) -> Array:
        """ids [...] -> x [N, D]."""
        return embedding_forward(ids.reshape(-1), self.parameters.source.embedding, self.dtype, self.rnd)

    def layer_forward(self, layer: int, x: Array, run: Pass) -> tuple[Array, LayerSaved]:
        """x [N, D] -> y [N, D] and what the backward needs."""
        r, attention = attention_block_forward(run, layer, x)
        y, mlp = mlp_block_forward(run, layer, r)
        return y, (attention, mlp)

    def layer_backward(
        self, layer: int, dy: Array, saved: LayerSaved, run: Pass, gradients: Gradients
    ) -> Array:
        """dy [N, D] -> dx [N, D]; adds the LoRA gradients to `gradients`."""
        dr = mlp_block_backward(run, layer, dy, saved[1], gradients)
        return attention_block_backward(run, layer, dr, saved[0], gradients)

    def final_norm(self, x: Array) -> tuple[Array, Array]:
        """x [N, D] -> h [N, D], rstd [N]."""
        return rms_norm_forward(x, self.parameters.final_norm, self.config.rms_norm_eps, self.rnd)

    def final_hidden(self, batch: Batch, run: Pass) -> Array:
        """Everything below the head: h [N, D]. Nothing is kept for a backward."""
        x = self.embed(batch.input_ids)
        for layer in range(self.config.num_hidden_layers):
            x, _ = self.layer_forward(layer, x, run)
        return self.final_norm(x)[0]

    def logits(self, h: Array) -> Array:
        """h [N, D] -> logits [N, V], whole: for generation and comparison only."""
        return head_logits(h, self.parameters.source.head, self.rnd)

    def head_loss(self, h: Array, batch: Batch) -> tuple[Array, Array]:
        """h [N, D] -> loss a row [N] float64, lse [N]."""
        return cross_entropy_forward(h, self.parameters.source.head, batch.targets.reshape(-1), self.rnd)

    def head_backward(
        self, x: Array, h: Array, rstd: Array, lse: Array, batch: Batch, denominator: float, tap: Tap = no_tap
    ) -> Array:
        """dx [N, D] of (sum of losses) / denominator, through the head and the final norm."""
        targets, head = batch.targets.reshape(-1), self.parameters.source.head
        if tap is not no_tap:
            tap("logits.grad", logits_gradient(h, head, targets, lse, denominator, self.rnd))
        dh = cross_entropy_backward(h, head, targets, lse, denominator, self.rnd)
        dh = tap("final_norm.grad", dh)
        dx = rms_norm_backward(dh, x, self.parameters.final_norm, rstd)
        return self.rnd(dx, Point.ACTIVATION_GRAD)

    def loss_and_gradients(self, batch: Batch, run: Pass, denominator: float, gradients: Gradients) -> float:
        """Adds the gradients of (sum of losses) / denominator; returns the sum of the losses."""
        layers = self.config.num_hidden_layers
        x, saved = self.embed(batch.input_ids), list[LayerSaved]()
        for layer in range(layers):
            x, kept = self.layer_forward(layer, x, run)
            saved.append(kept)
        h, rstd = self.final_norm(x)
        losses, lse = self.head_loss(h, batch)
        dx = self.head_backward(x, h, rstd, lse, batch, denominator)
        for layer in reversed(range(layers)):
            dx = self.layer_backward(layer, dx, saved.pop(), run, gradients)
        return float(losses.sum())

    def stream(self, batch: Batch, run: Pass) -> Iterator[None]:
        """A forward and backward pass with all taps. Yields after each layer and at the end, so that the
        caller can hand on what run.tap has gathered."""
        layers, denominator = self.config.num_hidden_layers, max(batch.supervised_tokens, 1)
        x, saved = self.embed(batch.input_ids), list[LayerSaved]()
        x = run.tap("hidden.0", x)
        for layer in range(layers):
            x, kept = self.layer_forward(layer, x, run)
            saved.append(kept)
            yield
        h, rstd = self.final_norm(x)
        h, rstd = run.tap("final_norm", h), run.tap("final_norm.rstd", rstd)
        losses, lse = self.head_loss(h, batch)
        run.tap("logits", self.logits(h))
        run.tap("loss", np.asarray(losses.sum() / denominator))
        dx = self.head_backward(x, h, rstd, lse, batch, denominator, run.tap)
        yield
        gradients: Gradients = {}
        for layer in reversed(range(layers)):
            dx = self.layer_backward(layer, dx, saved.pop(), run, gradients)
            yield
        run.tap("hidden.0.grad", dx)
        yield
