"""The one protocol between training and arithmetic, and the data that crosses it.

Two implementations: nf4tui.reference.engine (NumPy, also the CPU engine) and nf4tui.cuda_kernels.engine.
Dimension names everywhere: B rows of a batch, T positions, D hidden size, H query heads, K key/value
heads, d head size, F intermediate size, V vocabulary, L layers, R LoRA rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

IGNORE_INDEX = -100
PADDING = -1

Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Batch:
    """One micro-batch of B rows. A row holds packed documents, one after the other, then padding.

    input_ids:    [B, T] int32
    labels:       [B, T] int32, aligned with input_ids; IGNORE_INDEX where the token is not supervised
    positions:    [B, T] int32, restarting at 0 with every document
    document_ids: [B, T] int32, equal within a document, PADDING (-1) on padding

    Attention: position t sees s iff s <= t and both belong to one document; padding sees nothing and
    its attention output is 0. Position t predicts labels[t + 1] if t + 1 belongs to the same document.
    """

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    positions: NDArray[np.int32]
    document_ids: NDArray[np.int32]

    @cached_property
    def targets(self) -> NDArray[np.int32]:
        """[B, T] int32: the token that position t must predict, or IGNORE_INDEX. The only label shift."""
        targets = np.full_like(self.labels, IGNORE_INDEX)
        same = (self.document_ids[:, 1:] == self.document_ids[:, :-1]) & (self.document_ids[:, 1:] != PADDING)
        targets[:, :-1] = np.where(same, self.labels[:, 1:], IGNORE_INDEX)
        return targets

    @property
    def tokens(self) -> int:
        """Real (unpadded) tokens."""
        return int(np.count_nonzero(self.document_ids != PADDING))

    @property
    def supervised_tokens(self) -> int:
        """Terms of the loss."""
        return int(np.count_nonzero(self.targets != IGNORE_INDEX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimiser step needs beside its data. AdamW: Loshchilov & Hutter, arXiv 1711.05101."""

    step: int  # 1-based optimiser step: keys dropout; bias correction uses the optimiser's own count
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0  # maximum global gradient norm; 0 = no clipping
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """loss: mean over the step's supervised tokens, before the update; may be non-finite, never masked.
    grad_norm: global norm before clipping. nonfinite: count over loss and gradients; > 0 means that the
    update was not applied, and nonfinite_tensor names the first tensor that held one."""

    loss: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    nonfinite: int
    nonfinite_tensor: str | None


@dataclass(frozen=True, slots=True)
class LossSum:
    """Sum of the per-token losses in natural log units, and how many tokens it sums."""

    total: float
    tokens: int


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """AdamW's moments by adapter tensor name (float32), and how many updates were applied."""

    updates: int
    exp_avg: Tensors
    exp_avg_sq: Tensors


class Decoder(Protocol):
    """One sequence being generated, with its key/value cache."""

    def extend(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Appends `ids`; returns the logits [V] after the last of them."""


class Engine(Protocol):
    """A quantised model with LoRA adapters. Built from ModelWeights and a LoraConfig (engines.py)."""

    @property
    def device(self) -> str:
        """`cpu`, `cuda` or `sim`."""

    def step(self, micro_batches: Sequence[Batch], update: Update) -> StepResult:
        """Accumulates the gradients of all micro-batches over one common denominator (their supervised
        tokens), clips, and applies AdamW unless anything was non-finite."""

    def evaluate(self, batch: Batch) -> LossSum:
        """The loss with the current adapters, without dropout."""

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """[B, T, V] with the current adapters, without dropout."""

    def capture(self, batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every tap of a forward and backward pass over `batch` alone, in the order computed, without
        dropout and without an update. Names: docs/architecture.md, `Taps`."""

    def apply_gradients(self, gradients: Mapping[str, NDArray[Any]], update: Update) -> float:
        """Clips and applies one AdamW step with the given gradients (by adapter tensor name); returns
        the norm before clipping."""

    def adapters(self) -> Tensors:
        """A copy of the adapter tensors, float32, by name: lora_A [R, in], lora_B [out, R]."""

    def load_adapters(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """Replaces the adapter tensors. Raises InputError unless names and shapes match exactly."""

    def optimizer_state(self) -> OptimizerState:
        """A copy of the optimiser's state."""

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Replaces the optimiser's state. Raises InputError unless names and shapes match exactly."""

    def start_decoding(self, max_tokens: int) -> Decoder:
        """A decoder for up to `max_tokens` positions with the current adapters."""
