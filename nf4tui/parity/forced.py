"""Teacher forcing: the reference computes every op from what the GPU computed before it, and both results of the op
are compared. An error shows at the op that makes it and nowhere else.

The reference's own passes are run, with a tap that notes each tensor and hands back the GPU's in its place
(reference/projection.py): once in float64, once in float32 with the declared rounding points. Layer by layer: of
the GPU's tensors only those that the backward reads are kept, in bfloat16, as the kernels stored them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.bf16 import bf16_from_float32, float32_from_bf16
from nf4tui.engine import Batch, Tensors
from nf4tui.lora import PROJECTIONS, LoraConfig, projection_path
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.contract import Contract
from nf4tui.parity.judge import FP32, Verdict, judge_free, judge_op
from nf4tui.reference.attention_block import AttentionSaved
from nf4tui.reference.mlp_block import MlpSaved
from nf4tui.reference.projection import no_tap
from nf4tui.reference.qwen2 import Qwen2Reference
from nf4tui.reference.rounding import BF16, EXACT

Array = NDArray[Any]
Taps = dict[str, Array]  # by name, [N, ...] but for LoRA's gradients and the loss

# What the backward of a layer reads of its forward.
KEPT = ("attn_norm", "attn_norm.rstd", "attn.q_rope", "attn.k_rope", "attn.v_proj", "attn.context", "attn.lse",
        "attn_residual", "mlp_norm", "mlp_norm.rstd", "mlp.gate_proj", "mlp.up_proj", "mlp.swiglu")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor of the GPU in the type that its kernel stored."""

    data: Array

    @classmethod
    def of(cls, name: str, values: Array) -> "_Kept":
        return cls(values if name.endswith(FP32) else bf16_from_float32(values))

    def array(self, dtype: Any) -> Array:
        values = float32_from_bf16(self.data) if self.data.dtype == np.uint16 else self.data
        return values.astype(dtype)


class _Forced:
    """The reference in one precision, fed with the GPU's tensors."""

    def __init__(self, model: Qwen2Reference, batch: Batch, adapters: Tensors) -> None:
        self.model, self._batch = model, batch
        self._theirs: Mapping[str, Array] = {}
        self.mine: Taps = {}
        operands = model.lora_operands(
            {name: tensor.astype(model.dtype) for name, tensor in adapters.items()}
        )
        self._run = model.begin(batch, operands, tap=self._tap)
        self._plain = model.begin(batch, operands, tap=no_tap)

    def _tap(self, name: str, array: Array) -> Array:
        self.mine[name] = array
        return self._theirs[name].reshape(array.shape).astype(array.dtype) if name in self._theirs else array

    def _with(self, theirs: Mapping[str, Array]) -> None:
        self._theirs, self.mine = theirs, {}

    def embed(self, theirs: Mapping[str, Array]) -> Taps:
        self._with(theirs)
        self._tap("hidden.0", self.model.embed(self._batch.input_ids))
        return self.mine

    def forward(self, layer: int, theirs: Mapping[str, Array], x: Array) -> tuple[Taps, Array]:
        """Every op of a layer; and the layer's output with its input alone forced."""
        self._with(theirs)
        start = x.astype(self.model.dtype)
        self.model.layer_forward(layer, start, self._run)
        return self.mine, self.model.layer_forward(layer, start, self._plain)[0]

    def head(self, theirs: Mapping[str, Array], x: Array) -> Taps:
        """Final norm, logits and loss, and back to the final norm's input."""
        self._with(theirs)
        model, batch = self.model, self._batch
        last = x.astype(model.dtype)
        h, rstd = model.final_norm(last)
        h, rstd = self._tap("final_norm", h), self._tap("final_norm.rstd", rstd)
        losses, lse = model.head_loss(h, batch)
        supervised = max(batch.supervised_tokens, 1)
        self._tap("logits", model.logits(h))
        self._tap("loss", np.asarray(losses.sum() / supervised).reshape(1))
        self.gradient = model.head_backward(last, h, rstd, lse, batch, supervised, self._tap)
        return self.mine

    def backward(self, layer: int, theirs: Mapping[str, Array], x: Array, kept: Mapping[str, _Kept]) -> Taps:
        """Every op of a layer's backward. The gradient of its output is the last op's of the layer above."""
        self._with(theirs)
        dtype, path, shape = self.model.dtype, f"layers.{layer}", self._batch.input_ids.shape

        def of(name: str) -> Array:
            return kept[f"{path}.{name}"].array(dtype)

        def xa(name: str) -> Array | None:
            key = f"{projection_path(layer, name)}.lora_xa"
            return kept[key].array(dtype) if key in kept else None

        def heads(name: str) -> Array:
            return of(name).reshape(*shape, -1, self.model.config.head_dim)

        attention = AttentionSaved(
            x.astype(dtype), of("attn_norm"), of("attn_norm.rstd"),
            heads("attn.q_rope"), heads("attn.k_rope"), heads("attn.v_proj"), heads("attn.context"),
            of("attn.lse").reshape(*shape, -1), {name: xa(name) for name in PROJECTIONS},
        )  # fmt: skip
        mlp = MlpSaved(
            of("attn_residual"), of("mlp_norm"), of("mlp_norm.rstd"), of("mlp.gate_proj"), of("mlp.up_proj"),
            of("mlp.swiglu"), {name: xa(name) for name in PROJECTIONS},
        )  # fmt: skip
        self.gradient = self.model.layer_backward(layer, self.gradient, (attention, mlp), self._run, {})
        return self.mine

    def end(self, theirs: Mapping[str, Array]) -> Taps:
        self._with(theirs)
        self._tap("hidden.0.grad", self.gradient)
        return self.mine


def judge_capture(
    contract: Contract,
    weights: ModelWeights,
    lora: LoraConfig | None,
    adapters: Tensors,
    batch: Batch,
    taps: Iterator[tuple[str, Array]],
) -> Iterator[Verdict]:
    """A verdict on every tensor of a capture of `batch`, in the order computed. Stop early, and no more is computed.
    Raises ValueError where the capture lacks a tensor."""
    exact = _Forced(Qwen2Reference(weights, lora, np.float64, EXACT), batch, adapters)
    legal = _Forced(Qwen2Reference(weights, lora, np.float32, BF16), batch, adapters)
    layers, groups = weights.config.num_hidden_layers, _Groups(taps, batch.input_ids.size)
    x: list[_Kept] = []
    kept: list[dict[str, _Kept]] = []

    def judged(theirs: Mapping[str, Array], right: Taps, cost: Taps) -> Iterator[Verdict]:
        for name, array in right.items():
            if name not in theirs:
                raise ValueError(f"the capture lacks {name}")
            shape = array.shape
            yield judge_op(contract, name, theirs[name].reshape(shape), array, cost[name])

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        theirs = groups.until("hidden.0")
        yield from judged(theirs, exact.embed(theirs), legal.embed(theirs))
        x.append(_Kept.of("hidden.0", theirs["hidden.0"]))
        for layer in range(layers):
            path = f"layers.{layer}"
            theirs = groups.until(f"{path}.output")
            start = x[-1].array(np.float32)
            (right, free), (cost, free_cost) = (
                model.forward(layer, theirs, start) for model in (exact, legal)
            )
            yield from judged(theirs, right, cost)
            output = theirs[f"{path}.output"]
            factor, floor = contract.free.layer_factor, contract.op.floor
            yield judge_free(f"{path} (input forced)", factor, floor, output, free, free_cost)
            names = [f"{path}.{name}" for name in KEPT] + [
                name for name in theirs if name.endswith(".lora_xa")
            ]
            kept.append({name: _Kept.of(name, theirs[name]) for name in names})
            x.append(_Kept.of("output", output))
        theirs, start = groups.until("final_norm.grad"), x[-1].array(np.float32)
        yield from judged(theirs, exact.head(theirs, start), legal.head(theirs, start))
        for layer in reversed(range(layers)):
            theirs, start = groups.until(f"layers.{layer}.attn_norm.grad"), x[layer].array(np.float32)
            right, cost = (model.backward(layer, theirs, start, kept[layer]) for model in (exact, legal))
            yield from judged(theirs, right, cost)
            kept.pop()
        theirs = groups.until("hidden.0.grad")
        yield from judged(theirs, exact.end(theirs), legal.end(theirs))


class _Groups:
    """A capture cut into the tensors up to a name."""

    def __init__(self, taps: Iterator[tuple[str, Array]], tokens: int) -> None:
        self._taps, self._tokens = taps, tokens

    def until(self, last: str) -> Taps:
        """By name, [N, ...]. Raises ValueError where the capture ends before."""
        found: Taps = {}
        for name, array in self._taps:
            alone = name == "loss" or ".grad_lora_" in name
            found[name] = array.reshape(-1) if name == "loss" else array if alone else _by_token(array)
            if name == last:
                return found
        raise ValueError(f"the capture ends before {last}")


def _by_token(array: Array) -> Array:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
