"""The Engine protocol in NumPy: the oracle of every parity check, and the CPU engine.

Adapters, gradients and moments are held in the work dtype: float32 in training, float64 as truth.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.engine import Batch, Decoder, LossSum, OptimizerState, StepResult, Tensors, Update
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.adapter import check_tensors
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.adamw import adamw_update
from nf4tui.reference.cross_entropy import head_logits
from nf4tui.reference.decoder import ReferenceDecoder
from nf4tui.reference.dropout import DropoutKey
from nf4tui.reference.qwen2 import Gradients, Qwen2Reference, Tap, no_tap
from nf4tui.reference.reductions import clip_coefficient, find_nonfinite, global_norm
from nf4tui.reference.rounding import EXACT, Rounding

Array = NDArray[Any]


class ReferenceEngine:
    """A quantised model with adapters, in NumPy. lora None: the base model alone."""

    def __init__(
        self,
        weights: ModelWeights,
        lora: LoraConfig | None,
        *,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        rnd: Rounding = EXACT,
        adapters: Mapping[str, Array] | None = None,
    ) -> None:
        self.lora = lora
        self.model = Qwen2Reference(weights, lora, dtype, rnd)
        self._dtype = self.model.dtype
        self._adapters: dict[str, Array] = {}
        self._updates = 0
        if lora is not None:
            given = initial_adapters(weights.config, lora, seed) if adapters is None else adapters
            self.load_adapters(given)
        self._exp_avg = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}
        self._exp_avg_sq = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}

    @property
    def device(self) -> str:
        """Always `cpu`."""
        return "cpu"

    def step(self, micro_batches: Sequence[Batch], update: Update) -> StepResult:
        """One optimiser step over all micro-batches; see Engine.step."""
        supervised = sum(batch.supervised_tokens for batch in micro_batches)
        gradients: Gradients = {}
        total = 0.0
        # An overflow is not an error here: it is counted below, named, and the update is not applied.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for number, batch in enumerate(micro_batches):
                key = DropoutKey(update.seed, update.step, number)
                total += self._accumulate(batch, max(supervised, 1), gradients, key)
        loss = total / max(supervised, 1)
        nonfinite, first = find_nonfinite({"loss": np.asarray(loss), **gradients})
        norm = global_norm(gradients.values())
        if nonfinite == 0 and supervised > 0:
            self.apply_gradients(gradients, update, norm=norm)
        return StepResult(
            loss=loss,
            grad_norm=norm,
            tokens=sum(batch.tokens for batch in micro_batches),
            supervised_tokens=supervised,
            nonfinite=nonfinite,
            nonfinite_tensor=first,
        )

    def _accumulate(self, batch: Batch, denominator: int, gradients: Gradients, key: DropoutKey) -> float:
        """Adds the gradients of sum(losses) / denominator; returns the sum of the losses."""
        if batch.supervised_tokens == 0:
            return 0.0
        model, layers = self.model, self.model.config.num_hidden_layers
        run = model.begin(batch, model.lora_operands(self._adapters), key)
        x, saved = model.embed(batch), []
        for layer in range(layers):
            x, kept = model.layer_forward(layer, x, run)
            saved.append(kept)
        h, rstd = model.final_norm(x)
        losses, lse = model.head_loss(h, batch)
        dx: Array | None = model.head_backward(x, h, rstd, lse, batch, denominator)
        for layer in reversed(range(layers)):
            assert dx is not None
            dx = model.layer_backward(layer, dx, saved.pop(), run, gradients, need_dx=layer > 0)
        return float(losses.sum())

    def _final_hidden(self, batch: Batch, tap: Tap = no_tap) -> Array:
        run = self.model.begin(batch, self.model.lora_operands(self._adapters), tap=tap)
        x = self.model.embed(batch)
        for layer in range(self.model.config.num_hidden_layers):
            x, _ = self.model.layer_forward(layer, x, run)
        return self.model.final_norm(x)[0]

    def evaluate(self, batch: Batch) -> LossSum:
        """The loss with the current adapters, without dropout."""
        losses, _ = self.model.head_loss(self._final_hidden(batch), batch)
        return LossSum(float(losses.sum()), batch.supervised_tokens)

    def logits(self, batch: Batch) -> Array:
        """[B, T, V] in the work dtype, with the current adapters, without dropout."""
        logits = head_logits(self._final_hidden(batch), self.model.parameters.source.head, self.model.rnd)
        return logits.reshape(*batch.input_ids.shape, -1)

    def capture(self, batch: Batch) -> Iterator[tuple[str, Array]]:
        """Every tap, forward then backward, a layer at a time; see Engine.capture."""
        model, layers, shape = self.model, self.model.config.num_hidden_layers, batch.input_ids.shape
        taps: list[tuple[str, Array]] = []

        def tap(name: str, array: Array) -> None:
            by_token = name != "loss" and not name.endswith((".grad_lora_A", ".grad_lora_B"))
            taps.append((name, array.reshape(*shape, *array.shape[1:]) if by_token else array))

        def drain() -> Iterator[tuple[str, Array]]:
            yield from taps
            taps.clear()

        run = model.begin(batch, model.lora_operands(self._adapters), tap=tap)
        x, saved = model.embed(batch), []
        tap("hidden.0", x)
        for layer in range(layers):
            x, kept = model.layer_forward(layer, x, run)
            saved.append(kept)
            yield from drain()
        h, rstd = model.final_norm(x)
        losses, lse = model.head_loss(h, batch)
        denominator = max(batch.supervised_tokens, 1)
        tap("final_norm", h)
        tap("final_norm.rstd", rstd)
        tap("logits", head_logits(h, model.parameters.source.head, model.rnd))
        tap("loss", np.asarray(losses.sum() / denominator))
        dx: Array | None = model.head_backward(x, h, rstd, lse, batch, denominator, tap)
        yield from drain()
        gradients: Gradients = {}
        for layer in reversed(range(layers)):
            assert dx is not None
            dx = model.layer_backward(layer, dx, saved.pop(), run, gradients)
            yield from drain()
        assert dx is not None
        tap("hidden.0.grad", dx)
        yield from drain()

    def apply_gradients(
        self, gradients: Mapping[str, Array], update: Update, *, norm: float | None = None
    ) -> float:
        """Clips and applies one AdamW step; returns the norm before clipping (`norm`, if already known)."""
        if norm is None:
            norm = global_norm(gradients[name] for name in self._adapters)
        factor = clip_coefficient(norm, update.clip)
        self._updates += 1
        for name, p in self._adapters.items():
            g = gradients[name].astype(self._dtype, copy=False) * self._dtype.type(factor)
            adamw_update(p, g, self._exp_avg[name], self._exp_avg_sq[name], self._updates, update)
        return norm

    def adapters(self) -> Tensors:
        """A copy of the adapters, in the work dtype."""
        return {name: tensor.copy() for name, tensor in self._adapters.items()}

    def load_adapters(self, tensors: Mapping[str, Array]) -> None:
        """Replaces the adapters. Raises InputError unless names and shapes match exactly."""
        self._adapters = self._checked("adapter", tensors)

    def optimizer_state(self) -> OptimizerState:
        """A copy of AdamW's state, in the work dtype."""
        return OptimizerState(
            self._updates,
            {name: tensor.copy() for name, tensor in self._exp_avg.items()},
            {name: tensor.copy() for name, tensor in self._exp_avg_sq.items()},
        )

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Replaces AdamW's state. Raises InputError unless names and shapes match exactly."""
        exp_avg = self._checked("optimiser state exp_avg", state.exp_avg)
        exp_avg_sq = self._checked("optimiser state exp_avg_sq", state.exp_avg_sq)
        self._updates, self._exp_avg, self._exp_avg_sq = state.updates, exp_avg, exp_avg_sq

    def _checked(self, where: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Copies in the work dtype and the canonical order, so that sums over tensors are reproducible."""
        if self.lora is None:
            return {}
        config = self.model.config
        check_tensors(where, config, self.lora, {name: tensor.shape for name, tensor in tensors.items()})
        names = self.lora.tensor_names(config.num_hidden_layers)
        return {name: np.array(tensors[name], dtype=self._dtype) for name in names}

    def start_decoding(self, max_tokens: int) -> Decoder:
        """A decoder for one sequence of up to `max_tokens` positions."""
        return ReferenceDecoder(self.model, self.model.lora_operands(self._adapters), max_tokens)
