"""The Engine protocol in NumPy: the oracle of every parity check, and the CPU engine.

Adapters, gradients and moments are held in the work dtype: float32 in training, float64 as truth.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nf4tui.engine import Batch, Decoder, LossSum, OptimizerState, StepResult, Tensors, Update
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.adapter import check_tensors
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.adamw import adamw_update
from nf4tui.reference.decoder import ReferenceDecoder
from nf4tui.reference.dropout import DropoutKey
from nf4tui.reference.groups import document_groups
from nf4tui.reference.projection import Dropout, Gradients
from nf4tui.reference.qwen2 import Qwen2Reference
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
        if adapters is None:
            adapters = {} if lora is None else initial_adapters(weights.config, lora, seed)
        self.load_adapters(adapters)
        self._exp_avg = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}
        self._exp_avg_sq = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}

    @property
    def device(self) -> str:
        """Always `cpu`."""
        return "cpu"

    def step(self, micro_batches: Sequence[Batch], update: Update) -> StepResult:
        """One optimiser step over all micro-batches; see Engine.step. Raises InputError where nothing is
        supervised: a mean over no token does not exist, and 0 would look like a perfect loss."""
        supervised = sum(batch.supervised_tokens for batch in micro_batches)
        if supervised == 0:
            raise InputError(f"step {update.step}: no token of its batches is supervised; check the labels")
        gradients: Gradients = {}
        total = 0.0
        for number, batch in enumerate(micro_batches):
            total += self._accumulate(
                batch, supervised, gradients, DropoutKey(update.seed, update.step, number)
            )
        loss = total / supervised
        taps = {name.replace(".lora_", ".grad_lora_"): gradient for name, gradient in gradients.items()}
        nonfinite, first = find_nonfinite({"loss": np.asarray(loss), **taps})
        norm = global_norm(gradients[name] for name in self._adapters) if self._adapters else 0.0
        if nonfinite == 0:
            self._apply(gradients, update, norm)
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
        total = 0.0
        operands = self.model.lora_operands(self._adapters)
        p = 0.0 if self.lora is None else self.lora.dropout
        for group, places in document_groups(batch):
            if group.supervised_tokens:
                run = self.model.begin(group, operands, Dropout(key, places, p) if p > 0 else None)
                with _quiet():
                    total += self.model.loss_and_gradients(group, run, denominator, gradients)
        return total

    def evaluate(self, batch: Batch) -> LossSum:
        """The loss with the current adapters, without dropout."""
        total = 0.0
        for group, _ in document_groups(batch):
            if group.supervised_tokens:
                hidden = self._final_hidden(group)
                with _quiet():
                    total += float(self.model.head_loss(hidden, group)[0].sum())
        return LossSum(total, batch.supervised_tokens)

    def logits(self, batch: Batch) -> Array:
        """[B, T, V] in the work dtype, with the current adapters, without dropout."""
        logits = self.model.logits(self._final_hidden(batch))
        return logits.reshape(*batch.input_ids.shape, -1)

    def _final_hidden(self, batch: Batch) -> Array:
        run = self.model.begin(batch, self.model.lora_operands(self._adapters))
        with _quiet():
            return self.model.final_hidden(batch, run)

    def capture(self, batch: Batch) -> Iterator[tuple[str, Array]]:
        """Every tap, forward then backward, a layer at a time; see Engine.capture. rstd, lse and loss have
        no gradient taps: they are statistics of an op, not tensors that the next op reads."""
        taps: list[tuple[str, Array]] = []
        shape = batch.input_ids.shape

        def tap(name: str, array: Array) -> Array:
            by_token = name != "loss" and not name.endswith((".grad_lora_A", ".grad_lora_B"))
            taps.append((name, array.reshape(*shape, *array.shape[1:]) if by_token else array))
            return array

        run = self.model.begin(batch, self.model.lora_operands(self._adapters), tap=tap)
        for _ in self.model.stream(batch, run):
            yield from taps
            taps.clear()

    def apply_gradients(self, gradients: Mapping[str, Array], update: Update) -> float:
        """Clips and applies one AdamW step; returns the norm before clipping. A non-finite norm is returned
        and nothing applied. Raises InputError unless names and shapes are the adapters'."""
        given = self._checked("gradients", gradients)
        norm = global_norm(given.values())
        if np.isfinite(norm):
            self._apply(given, update, norm)
        return norm

    def _apply(self, gradients: Mapping[str, Array], update: Update, norm: float) -> None:
        factor = self._dtype.type(clip_coefficient(norm, update.clip))
        self._updates += 1
        for name, p in self._adapters.items():
            g = gradients[name] * factor
            adamw_update(p, g, self._exp_avg[name], self._exp_avg_sq[name], self._updates, update)

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
            if tensors:
                raise InputError(f"{where}: given for a model without LoRA")
            return {}
        config = self.model.config
        check_tensors(where, config, self.lora, {name: tensor.shape for name, tensor in tensors.items()})
        names = self.lora.tensor_names(config.num_hidden_layers)
        return {name: np.array(tensors[name], dtype=self._dtype) for name in names}

    def start_decoding(self, max_tokens: int) -> Decoder:
        """A decoder for one sequence of up to `max_tokens` positions. It keeps the adapters of this moment:
        its cache was made with them."""
        frozen = self.model.lora_operands(self._checked("adapter", self._adapters))
        return ReferenceDecoder(self.model, frozen, max_tokens)


def _quiet() -> np.errstate:
    """An overflow is no error here: it shows as a non-finite loss or gradient, which is counted and named."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")
