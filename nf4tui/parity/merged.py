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
from nf4tui.engine import PADDING, Batch, Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.engine import ReferenceEngine

PROBE_TOKENS = 512  # of all rows: their logits are held
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
    """The first samples, one a row, of at most PROBE_TOKENS tokens in all. Raises InputError where there is
    nothing to learn in them."""
    chosen: list[Sample] = []
    left = PROBE_TOKENS
    for sample in samples:
        cut = Sample(sample.ids[:left], sample.supervised[:left], sample.source)
        if cut.supervised[1:].any():
            chosen.append(cut)
            left -= len(cut.ids)
    if not chosen:
        raise InputError(f"--data: no sample has a supervised token among its first {PROBE_TOKENS}")
    rows = [(index,) for index in range(len(chosen))]
    return make_batch(chosen, rows, len(rows), max(len(sample.ids) for sample in chosen))


class Probe:
    """The trained model's logits on a batch, and others measured against them."""

    def __init__(self, weights: ModelWeights, lora: LoraConfig, adapters: Tensors, batch: Batch) -> None:
        self._batch = batch
        engine = ReferenceEngine(weights, lora, adapters=adapters)
        self._logits = self._rows(engine)
        self.trained = Measured(self._loss(engine), 0.0)

    def measure(self, weights: ModelWeights) -> Measured:
        """A model without adapters."""
        engine = ReferenceEngine(weights, None)
        return Measured(self._loss(engine), rel_l2(self._rows(engine), self._logits))

    def _loss(self, engine: ReferenceEngine) -> float:
        found = engine.evaluate(self._batch)
        return found.total / found.tokens

    def _rows(self, engine: ReferenceEngine) -> NDArray[np.float32]:
        """The logits of real tokens, [tokens, V]."""
        rows: NDArray[np.float32] = engine.logits(self._batch)[self._batch.document_ids != PADDING]
        return rows
