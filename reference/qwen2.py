"""The whole causal model, Qwen2 (arXiv 2407.10671), forward and backward, a layer at a time.

    x = embedding(ids)
    layer:  r = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))),  n = rms_norm(x)
            y = r + down_proj(swiglu(gate_proj(m), up_proj(m))),                     m = rms_norm(r)
    loss = cross_entropy(rms_norm(y), head)

Activations are [N, ...] with N = B * T, save in attention. `tap(name, array)` is called with every
intermediate tensor that the kernels store, under the names of docs/architecture.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.engine import Batch
from nf4tui.lora import LoraConfig, projection_path
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.attention import Span, attention_backward, attention_forward, document_spans
from nf4tui.reference.cross_entropy import cross_entropy_backward, cross_entropy_forward
from nf4tui.reference.dropout import DropoutKey, dropout_mask
from nf4tui.reference.embedding import embedding_forward
from nf4tui.reference.nf4_linear import LoraOperands, lora_delta, nf4_linear_backward, nf4_linear_forward
from nf4tui.reference.parameters import Parameters
from nf4tui.reference.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.reference.rope import rope_backward, rope_forward, rope_table
from nf4tui.reference.rounding import EXACT, Point, Rounding
from nf4tui.reference.swiglu import swiglu_backward, swiglu_forward

Array = NDArray[Any]
Tap = Callable[[str, Array], None]
Gradients = dict[str, Array]


def no_tap(name: str, array: Array) -> None:
    """Ignores the tensor."""


def _flat(x: Array) -> Array:
    """[B, T, ...] -> [N, ...]: taps are handed over by token."""
    return x.reshape(-1, *x.shape[2:])


@dataclass(frozen=True)
class Pass:
    """What is common to all layers of one forward and backward pass."""

    shape: tuple[int, int]  # (B, T)
    spans: list[Span]
    cos: Array  # [B, T, d/2]
    sin: Array
    lora: Mapping[str, LoraOperands]  # by projection path; empty: the base model alone
    dropout: float
    dropout_key: DropoutKey | None  # None: no dropout
    tap: Tap


@dataclass
class Saved:
    """One layer's activations that its backward needs."""

    tensors: dict[str, Array] = field(default_factory=dict)
    xa: dict[str, Array | None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.tensors[name] = array


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
        operands = {}
        for name in adapters:
            path, part = name.rsplit(".", 1)
            if part == "lora_A":
                operands[path] = LoraOperands.from_master(
                    adapters[name], adapters[f"{path}.lora_B"], self.lora.scaling, self.rnd
                )
        return operands

    def begin(
        self,
        batch: Batch,
        lora: Mapping[str, LoraOperands],
        dropout_key: DropoutKey | None = None,
        tap: Tap = no_tap,
    ) -> Pass:
        """Prepares a pass over `batch`."""
        cos, sin = rope_table(
            batch.positions, self.config.head_dim, self.config.rope_theta, self.dtype, self.rnd
        )
        dropout = self.lora.dropout if self.lora is not None and dropout_key is not None else 0.0
        key = dropout_key if dropout else None
        rows, length = batch.input_ids.shape
        return Pass((rows, length), document_spans(batch.document_ids), cos, sin, lora, dropout, key, tap)

    def embed(self, batch: Batch) -> Array:
        """Token embeddings [N, D]."""
        table = self.parameters.source.embedding
        return embedding_forward(batch.input_ids.reshape(-1), table, self.dtype, self.rnd)

    def layer_forward(self, layer: int, x: Array, run: Pass) -> tuple[Array, Saved]:
        """x [N, D] -> y [N, D] and what the backward needs."""
        config, saved, path = self.config, Saved(), f"layers.{layer}"
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        tap, eps = run.tap, config.rms_norm_eps
        saved["x"] = x
        saved["n"], saved["n_rstd"] = rms_norm_forward(x, self.parameters.attn_norms[layer], eps, self.rnd)
        tap(f"{path}.attn_norm", saved["n"])
        tap(f"{path}.attn_norm.rstd", saved["n_rstd"])
        q = self._project(layer, "q_proj", saved["n"], saved, run).reshape(*run.shape, heads, width)
        k = self._project(layer, "k_proj", saved["n"], saved, run).reshape(*run.shape, kv_heads, width)
        v = self._project(layer, "v_proj", saved["n"], saved, run).reshape(*run.shape, kv_heads, width)
        saved["q"] = rope_forward(q, run.cos, run.sin, self.rnd)
        saved["k"], saved["v"] = rope_forward(k, run.cos, run.sin, self.rnd), v
        tap(f"{path}.attn.q_rope", _flat(saved["q"]))
        tap(f"{path}.attn.k_rope", _flat(saved["k"]))
        context, lse = attention_forward(saved["q"], saved["k"], v, run.spans, self.rnd)
        saved["context"], saved["lse"] = context, lse
        tap(f"{path}.attn.context", _flat(context))
        tap(f"{path}.attn.lse", _flat(lse))
        o = self._project(layer, "o_proj", context.reshape(len(x), -1), saved, run)
        saved["r"] = self.rnd(x + o, Point.RESIDUAL)
        tap(f"{path}.attn_residual", saved["r"])
        return self._mlp_forward(layer, saved, run), saved

    def _mlp_forward(self, layer: int, saved: Saved, run: Pass) -> Array:
        path, tap = f"layers.{layer}", run.tap
        norm, eps = self.parameters.mlp_norms[layer], self.config.rms_norm_eps
        saved["m"], saved["m_rstd"] = rms_norm_forward(saved["r"], norm, eps, self.rnd)
        tap(f"{path}.mlp_norm", saved["m"])
        tap(f"{path}.mlp_norm.rstd", saved["m_rstd"])
        saved["gate"] = self._project(layer, "gate_proj", saved["m"], saved, run)
        saved["up"] = self._project(layer, "up_proj", saved["m"], saved, run)
        saved["swiglu"] = swiglu_forward(saved["gate"], saved["up"], self.rnd)
        tap(f"{path}.mlp.swiglu", saved["swiglu"])
        y = self.rnd(
            saved["r"] + self._project(layer, "down_proj", saved["swiglu"], saved, run), Point.RESIDUAL
        )
        tap(f"{path}.output", y)
        return y

    def layer_backward(
        self, layer: int, dy: Array, saved: Saved, run: Pass, gradients: Gradients, *, need_dx: bool = True
    ) -> Array | None:
        """dy [N, D] -> dx [N, D]; adds the LoRA gradients to `gradients`. need_dx False: dx is not formed
        (nothing below the first layer is trained)."""
        path, tap = f"layers.{layer}", run.tap
        tap(f"{path}.output.grad", dy)
        dr = self.rnd(dy + self._mlp_backward(layer, dy, saved, run, gradients), Point.ACTIVATION_GRAD)
        tap(f"{path}.attn_residual.grad", dr)
        dcontext = self._unproject(
            layer, "o_proj", dr, saved["context"].reshape(len(dy), -1), saved, run, gradients
        )
        dcontext = dcontext.reshape(saved["q"].shape)
        tap(f"{path}.attn.context.grad", _flat(dcontext))
        dq, dk, dv = attention_backward(
            dcontext, saved["q"], saved["k"], saved["v"], saved["context"], saved["lse"], run.spans, self.rnd
        )
        tap(f"{path}.attn.q_rope.grad", _flat(dq))
        tap(f"{path}.attn.k_rope.grad", _flat(dk))
        dq = rope_backward(dq, run.cos, run.sin, self.rnd)
        dk = rope_backward(dk, run.cos, run.sin, self.rnd)
        dn = None
        for name, d in (("q_proj", dq), ("k_proj", dk), ("v_proj", dv)):
            part = self._unproject(layer, name, d.reshape(len(dy), -1), saved["n"], saved, run, gradients)
            dn = part if dn is None else dn + part
        if not need_dx or dn is None:
            return None
        dn = self.rnd(dn, Point.ACTIVATION_GRAD)
        tap(f"{path}.attn_norm.grad", dn)
        norm = self.parameters.attn_norms[layer]
        dx = dr + rms_norm_backward(dn, saved["x"], norm, saved["n_rstd"], self.rnd)
        return self.rnd(dx, Point.ACTIVATION_GRAD)

    def _mlp_backward(self, layer: int, dy: Array, saved: Saved, run: Pass, gradients: Gradients) -> Array:
        path, tap = f"layers.{layer}", run.tap
        dswiglu = self._unproject(layer, "down_proj", dy, saved["swiglu"], saved, run, gradients)
        tap(f"{path}.mlp.swiglu.grad", dswiglu)
        dgate, dup = swiglu_backward(dswiglu, saved["gate"], saved["up"], self.rnd)
        dm = self._unproject(layer, "gate_proj", dgate, saved["m"], saved, run, gradients)
        dm = dm + self._unproject(layer, "up_proj", dup, saved["m"], saved, run, gradients)
        dm = self.rnd(dm, Point.ACTIVATION_GRAD)
        tap(f"{path}.mlp_norm.grad", dm)
        return rms_norm_backward(dm, saved["r"], self.parameters.mlp_norms[layer], saved["m_rstd"], self.rnd)

    def final_norm(self, x: Array) -> tuple[Array, Array]:
        """x [N, D] -> h [N, D], rstd [N]."""
        return rms_norm_forward(x, self.parameters.final_norm, self.config.rms_norm_eps, self.rnd)

    def head_loss(self, h: Array, batch: Batch) -> tuple[Array, Array]:
        """h [N, D] -> loss a row [N] float64, lse [N]."""
        return cross_entropy_forward(h, self.parameters.source.head, batch.targets.reshape(-1), self.rnd)

    def head_backward(
        self, x: Array, h: Array, rstd: Array, lse: Array, batch: Batch, denominator: float, tap: Tap = no_tap
    ) -> Array:
        """dx [N, D] of (sum of losses) / denominator, through the head and the final norm."""
        targets = batch.targets.reshape(-1)
        dh = cross_entropy_backward(h, self.parameters.source.head, targets, lse, denominator, self.rnd)
        tap("final_norm.grad", dh)
        return rms_norm_backward(dh, x, self.parameters.final_norm, rstd, self.rnd)

    def _mask(self, path: str, x: Array, run: Pass) -> Array | None:
        if run.dropout_key is None or path not in run.lora:
            return None
        return dropout_mask(run.dropout_key, path, x.shape, run.dropout, x.dtype)

    def _project(self, layer: int, name: str, x: Array, saved: Saved, run: Pass) -> Array:
        path = projection_path(layer, name)
        lora, mask = run.lora.get(path), self._mask(path, x, run)
        weight, bias = self.parameters.matrix(layer, name), self.parameters.bias(layer, name)
        y, xa = nf4_linear_forward(x, weight, bias, lora, mask, self.rnd)
        saved.xa[name] = xa
        run.tap(path, y)
        if run.tap is not no_tap and lora is not None and xa is not None:
            run.tap(f"{path}.lora_xa", xa)
            run.tap(f"{path}.lora_delta", lora_delta(xa, lora, self.rnd))
        return y

    def _unproject(
        self, layer: int, name: str, dy: Array, x: Array, saved: Saved, run: Pass, gradients: Gradients
    ) -> Array:
        path = projection_path(layer, name)
        lora, mask = run.lora.get(path), self._mask(path, x, run)
        run.tap(f"{path}.grad", dy)
        weight = self.parameters.matrix(layer, name)
        dx, da, db = nf4_linear_backward(dy, x, weight, lora, saved.xa[name], mask, self.rnd)
        for part, gradient in (("A", da), ("B", db)):
            if gradient is not None:
                run.tap(f"{path}.grad_lora_{part}", gradient)
                key = f"{path}.lora_{part}"
                gradients[key] = gradients[key] + gradient if key in gradients else gradient
        return dx
