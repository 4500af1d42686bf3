"""How far a merged model is from the one that was trained: its logits and its loss on a probe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nf4tui.data.batches import make_batch
from nf4tui.data.chat import tokenize
from nf4tui.data.conversation import Conversation, Message
from nf4tui.data.samples import Sample
from nf4tui.data.segments import RenderError
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.engine import IGNORE_INDEX, Batch, Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.qwen2 import Qwen2Reference

# One pass through a large model takes seconds on a CPU, and of these rows two sets of logits are held.
PROBE_TOKENS, PROBE_ROWS = 256, 128
_BUILT_IN = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Count from one to five.", "1, 2, 3, 4, 5"),
    ('Write {"a": 1} with two keys.', '{"a": 1, "b": 2}'),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A model on the probe. loss: mean over supervised tokens. logits_rel_l2: against the trained model's."""

    loss: float
    logits_rel_l2: float


def built_in_probe(tokenizer: ChatTokenizer) -> Batch:
    """A few short conversations in the model's chat form. Raises InputError where it cannot write them."""
    conversations = [Conversation((Message("user", q), Message("assistant", a))) for q, a in _BUILT_IN]
    samples = []
    for segments in tokenizer.form.render(conversations, "all"):
        if isinstance(segments, RenderError):
            raise InputError(f"the model's chat template: {segments}")
        tokens = tokenize(segments, tokenizer)
        samples.append(Sample(tokens.ids, tokens.supervised, "built in"))
    return probe(samples)


def probe(samples: Sequence[Sample]) -> Batch:
    """The first samples, in one row of at most PROBE_TOKENS tokens and PROBE_ROWS supervised ones. Of a sample
    that is longer the part around its first supervised token. Raises InputError where there is none."""
    chosen: list[Sample] = []
    tokens, rows = PROBE_TOKENS, PROBE_ROWS
    for sample in samples:
        if tokens < 2 or rows < 1:
            break
        cut = _cut(sample, tokens, rows)
        if cut is not None:
            chosen.append(cut)
            tokens -= len(cut.ids)
            rows -= int(cut.supervised.sum())
    if not chosen:
        raise InputError("--data: no sample has a supervised token; there is nothing to measure on")
    return make_batch(chosen, [tuple(range(len(chosen)))], 1, PROBE_TOKENS - tokens)


def _cut(sample: Sample, tokens: int, rows: int) -> Sample | None:
    """A part of the sample of at most `tokens` tokens and `rows` supervised ones, None if it would have none.
    The first token of a part is not supervised: nothing predicts it."""
    places = np.flatnonzero(sample.supervised)
    if not len(places):
        return None
    start = 0 if places[0] < tokens else int(places[0]) - tokens // 2
    end = min(start + tokens, len(sample.ids), int(places[rows]) if rows < len(places) else len(sample.ids))
    return Sample(sample.ids[start:end], sample.supervised[start:end], sample.source)


class Probe:
    """The trained model's logits on a batch, and others measured against them."""

    def __init__(self, weights: ModelWeights, lora: LoraConfig, adapters: Tensors, batch: Batch) -> None:
        self._batch = batch
        self._logits = self._rows(weights, lora, adapters)
        self.trained = Measured(self._loss(self._logits), 0.0)

    def measure(self, weights: ModelWeights) -> Measured:
        """A model without adapters."""
        logits = self._rows(weights, None, {})
        return Measured(self._loss(logits), rel_l2(logits, self._logits))

    def _rows(self, weights: ModelWeights, lora: LoraConfig | None, adapters: Tensors) -> NDArray[np.float32]:
        """The logits [n, V] that predict the supervised tokens, in float32."""
        model = Qwen2Reference(weights, lora)
        with np.errstate(over="ignore", invalid="ignore"):  # shows as a non-finite figure
            hidden = model.final_hidden(self._batch, model.begin(self._batch, model.lora_operands(adapters)))
            rows: NDArray[np.float32] = model.logits(hidden[self._predicting])
        return rows

    def _loss(self, logits: NDArray[np.float32]) -> float:
        """Their mean cross-entropy, a row at a time, in float64."""
        wanted = self._batch.targets.reshape(-1)[self._predicting]
        with np.errstate(over="ignore", invalid="ignore"):
            losses = [
                np.logaddexp.reduce(row, dtype=np.float64) - row[token]
                for row, token in zip(logits, wanted, strict=True)
            ]
        return float(np.mean(losses))

    @property
    def _predicting(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._batch.targets.reshape(-1) != IGNORE_INDEX)
