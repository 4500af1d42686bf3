"""The CUDA engine: engine.Engine over the kernels of this package, on a GPU or in the simulator.

All buffers of a batch shape lie in one region of memory, which the shapes share: a shape's tensors live only through
its pass. The region is as large as the largest shape needs and is taken before the first pass of it. A pass is
launched plainly the first time, which compiles its kernels, and recorded the second time; from then on it is
replayed. A step reads back once, at its end.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.cuda_kernels import adamw
from nf4tui.cuda_kernels.adapters import DeviceAdapters
from nf4tui.cuda_kernels.arena import Arena
from nf4tui.cuda_kernels.capture import capture
from nf4tui.cuda_kernels.decoder import CudaDecoder
from nf4tui.cuda_kernels.device import Device
from nf4tui.cuda_kernels.dropout import KEY, Dropout, key_of
from nf4tui.cuda_kernels.parameters import DeviceParameters
from nf4tui.cuda_kernels.plan import Plan, plan
from nf4tui.cuda_kernels.qwen2 import Qwen2Passes
from nf4tui.cuda_kernels.replay import Replayed
from nf4tui.engine import (
    IGNORE_INDEX,
    Batch,
    Decoder,
    LossSum,
    OptimizerState,
    StepResult,
    Tensors,
    Update,
)
from nf4tui.errors import CannotRunError, InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.weights import ModelWeights

Work = Callable[[], None]


class _Passes:
    """The recorded works over one batch shape."""

    def __init__(self, device: Device, passes: Qwen2Passes, train: Work, evaluate: Work) -> None:
        self.passes = passes
        self.train, self.evaluate = Replayed(device, train), Replayed(device, evaluate)


class CudaEngine:
    """A quantised model with adapters. lora None: the base model alone. recompute: whether layers are computed
    again in the backward instead of kept; None: where keeping them would not fit. Raises CannotRunError for a model
    that the kernels cannot run, or without the memory for it."""

    def __init__(
        self,
        device: Device,
        weights: ModelWeights,
        lora: LoraConfig | None,
        *,
        seed: int = 0,
        adapters: Mapping[str, NDArray[Any]] | None = None,
        recompute: bool | None = None,
    ) -> None:
        self._device, self._config, self._lora, self._recompute = device, weights.config, lora, recompute
        needed = self._plan((1, 1), recompute=True)
        self._check_fits(needed.total, device.free_bytes(), "the model")
        held = Arena(device.empty(needed.parameters + needed.adapters, np.uint8))
        self._parameters = DeviceParameters(device, held, weights.config)
        self._adapters = DeviceAdapters(device, held, weights.config, lora)
        self._parameters.load(weights)
        self._adapters.clear()
        self._region = device.empty(0, np.uint8)
        self._shapes: dict[tuple[int, int], _Passes] = {}
        self._updates = 0
        self._results = device.empty(adamw.RESULTS, np.float64)
        self._sums, self._bad = device.empty(adamw.BLOCKS, np.float64), device.empty(adamw.BLOCKS, np.int32)
        self._settings = device.empty(adamw.SETTINGS, np.float32)
        self._denominator, self._key = device.empty(1, np.float32), device.empty(KEY, np.uint32)
        p = 0.0 if lora is None else lora.dropout
        self._dropout = Dropout(p, self._key) if p > 0 else None
        self._update = Replayed(device, self._launch_update)
        self._decoder: CudaDecoder | None = None
        if adapters is None:
            adapters = {} if lora is None else initial_adapters(weights.config, lora, seed)
        self.load_adapters(adapters)

    @property
    def device(self) -> str:
        """`cuda` or `sim`."""
        return self._device.name

    def reserve(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Takes the memory for batches of these shapes (B, T) now. Raises CannotRunError if it is not there."""
        for shape in shapes:
            self._of(shape)

    def step(self, micro_batches: Sequence[Batch], update: Update) -> StepResult:
        """One optimiser step; see Engine.step. Raises InputError where nothing is supervised."""
        supervised = sum(batch.supervised_tokens for batch in micro_batches)
        if supervised == 0:
            raise InputError(f"step {update.step}: no token of its batches is supervised; check the labels")
        for batch in micro_batches:
            self._check(batch)
        self._device.fill(self._adapters.gradients, 0)
        self._device.fill(self._results, 0)
        self._device.upload(self._denominator, np.array([supervised], np.float32))
        for number, batch in enumerate(micro_batches):
            if batch.supervised_tokens:
                if self._dropout is not None:
                    self._device.upload(self._key, key_of(update.seed, update.step, number))
                recorded = self._of(_shape(batch))
                recorded.passes.load(batch)
                recorded.train()
        results = self._apply(update)
        loss, nonfinite = results[adamw.LOSS] / supervised, int(results[adamw.NONFINITE])
        return StepResult(
            loss=float(loss),
            grad_norm=float(results[adamw.NORM]) if nonfinite == 0 else math.nan,
            tokens=sum(batch.tokens for batch in micro_batches),
            supervised_tokens=supervised,
            nonfinite=nonfinite,
            nonfinite_tensor=self._first_nonfinite(loss) if nonfinite else None,
        )

    def evaluate(self, batch: Batch) -> LossSum:
        """The loss with the current adapters, without dropout."""
        if batch.supervised_tokens == 0:
            return LossSum(0.0, 0)
        self._check(batch)
        recorded = self._of(_shape(batch))
        self._device.fill(self._results, 0)
        recorded.passes.load(batch)
        recorded.evaluate()
        return LossSum(float(self._device.download(self._results)[adamw.LOSS]), batch.supervised_tokens)

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """[B, T, V] with the current adapters, without dropout."""
        self._check(batch)
        passes = self._of(_shape(batch)).passes
        passes.load(batch)
        passes.forward()
        return passes.head.logits(passes.h).reshape(*batch.input_ids.shape, -1)

    def capture(self, batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every tap, forward then backward, a layer at a time; see Engine.capture."""
        self._check(batch)
        self._device.fill(self._adapters.gradients, 0)
        passes = self._of(_shape(batch)).passes
        yield from capture(self._device, self._config, passes, batch, self._denominator)

    def gradients(self) -> Tensors:
        """The gradients of the last step or capture, before clipping, by adapter tensor name."""
        return self._adapters.read(self._adapters.gradients)

    def apply_gradients(self, gradients: Mapping[str, NDArray[Any]], update: Update) -> float:
        """Clips and applies one AdamW step; returns the norm before clipping. A non-finite norm is returned and
        nothing applied."""
        self._adapters.write(self._adapters.gradients, "gradients", gradients)
        self._device.fill(self._results, 0)
        results = self._apply(update)
        return float(results[adamw.NORM]) if results[adamw.NONFINITE] == 0 else math.nan

    def adapters(self) -> Tensors:
        """A copy of the adapters."""
        return self._adapters.read(self._adapters.masters)

    def load_adapters(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the adapters. Raises InputError unless names and shapes match exactly."""
        self._adapters.write(self._adapters.masters, "adapter", tensors)
        self._adapters.refresh()

    def optimizer_state(self) -> OptimizerState:
        """A copy of AdamW's state."""
        read = self._adapters.read
        return OptimizerState(self._updates, read(self._adapters.first), read(self._adapters.second))

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Replaces AdamW's state. Raises InputError unless names and shapes match exactly."""
        self._adapters.write(self._adapters.first, "optimiser state exp_avg", state.exp_avg)
        self._adapters.write(self._adapters.second, "optimiser state exp_avg_sq", state.exp_avg_sq)
        self._updates = state.updates

    def start_decoding(self, max_tokens: int) -> Decoder:
        """A decoder for one sequence of up to `max_tokens` positions, with the adapters of this moment; it ends the
        one before it. Raises InputError for more positions than the model has."""
        if max_tokens > self._parameters.positions:
            raise InputError(f"{max_tokens} positions: the model has {self._parameters.positions}")
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = CudaDecoder(self._device, self._parameters, self._adapters, max_tokens)
        return self._decoder

    def _of(self, shape: tuple[int, int]) -> _Passes:
        """The passes over a shape. A shape that needs more than the region makes all of them anew."""
        if shape in self._shapes:
            return self._shapes[shape]
        free = self._device.free_bytes() + self._region.size
        recompute = self._recompute
        if recompute is None:
            recompute = self._plan(shape, recompute=False).passes > free
        needed = self._plan(shape, recompute=recompute).passes
        if needed > self._region.size:
            self._check_fits(needed, free, f"batches of {shape[0]} x {shape[1]} tokens")
            self._shapes.clear()
            self._device.free(self._region)
            self._region = self._device.empty(needed, np.uint8)
        arguments = self._device, Arena(self._region), self._parameters, self._adapters, shape
        passes = Qwen2Passes(*arguments, recompute=recompute)

        def evaluate() -> None:
            passes.forward()
            passes.head.loss(passes.h, passes.targets)
            adamw.add_losses(self._device, self._results, passes.head.losses)

        def train() -> None:
            passes.forward(self._dropout)
            passes.head.loss(passes.h, passes.targets)
            adamw.add_losses(self._device, self._results, passes.head.losses)
            passes.backward(self._denominator, self._dropout)

        self._shapes[shape] = _Passes(self._device, passes, train, evaluate)
        return self._shapes[shape]

    def _apply(self, update: Update) -> NDArray[np.float64]:
        """Clips the gradients that are there and applies them, unless something is not finite; the results."""
        if self._adapters.masters.size == 0:
            return self._device.download(self._results)
        self._device.upload(self._settings, adamw.settings_of(update, self._updates + 1))
        self._update()
        results = self._device.download(self._results)
        self._updates += int(results[adamw.NONFINITE] == 0)
        return results

    def _launch_update(self) -> None:
        a, results = self._adapters, self._results
        adamw.gradient_norm(self._device, results, self._sums, self._bad, a.gradients, self._settings)
        arrays = a.masters, a.first, a.second, a.gradients
        adamw.adamw_update(self._device, *arrays, results, self._settings)
        a.refresh()

    def _first_nonfinite(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return "loss"
        for name, gradient in self.gradients().items():
            if not np.isfinite(gradient).all():
                return name.replace(".lora_", ".grad_lora_")
        return None

    def _plan(self, shape: tuple[int, int], *, recompute: bool) -> Plan:
        try:
            return plan(self._config, self._lora, shape, recompute=recompute)
        except ValueError as error:
            raise CannotRunError(f"--device {self._device.name}: {error}") from error

    def _check_fits(self, needed: int, free: int, what: str) -> None:
        if needed > free:
            raise CannotRunError(
                f"{what} need {needed / 2**30:.2f} GiB of GPU memory, and {free / 2**30:.2f} GiB are free; "
                "`nf4tui plan` shows what would fit"
            )

    def _check(self, batch: Batch) -> None:
        """Raises InputError for what would make a kernel read outside of its table."""
        size = self._config.vocab_size
        labels = batch.labels[batch.labels != IGNORE_INDEX]
        for what, ids in (("input_ids", batch.input_ids), ("labels", labels)):
            wrong = (ids < 0) | (ids >= size)
            if wrong.any():
                token = int(ids[wrong][0])
                raise InputError(f"{what}: token {token} is not in the model's vocabulary of {size}")
        longest = self._parameters.positions
        if batch.positions.size and not 0 <= batch.positions.min() <= batch.positions.max() < longest:
            raise InputError(f"positions: the model has {longest}; got {int(batch.positions.max())}")


def _shape(batch: Batch) -> tuple[int, int]:
    B, T = batch.input_ids.shape
    return B, T
