"""The precision probe of the CPU engine: float32 against float64 of one source, tap by tap.

It shows how much rounding the float32 engine adds with the current adapters, on one fixed small batch. Both
sides are the same code, so it can never show that the code is right: it is called precision, not parity.
"""

import math
from dataclasses import dataclass

import numpy as np

from nf4tui.engine import Batch, Engine
from nf4tui.lora import PROJECTIONS
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.parity.compare import rel_l2
from nf4tui.runs.events import PrecisionEvent, TapError

MAX_TOKENS = 128
MAX_PARAMETERS = 20_000_000  # a float64 copy and pass beyond this would be felt


@dataclass(frozen=True, slots=True)
class PrecisionProbe:
    """exact: the float64 engine over the same weights. batch: [1, T], T at most MAX_TOKENS."""

    exact: Engine
    batch: Batch

    def measure(self, engine: Engine, step: int) -> PrecisionEvent:
        """Compares every tap, forward and backward, with the adapters that `engine` has now."""
        self.exact.load_adapters(engine.adapters())
        errors = [
            TapError(tap=tap, rel_l2=rel_l2(value, exact))
            for (tap, value), (_, exact) in zip(
                engine.capture(self.batch), self.exact.capture(self.batch), strict=True
            )
        ]
        # A NaN is the worst error of all, though it compares as smaller than none.
        worst = max(errors, key=lambda error: math.inf if math.isnan(error.rel_l2) else error.rel_l2)
        logits = next(error.rel_l2 for error in errors if error.tap == "logits")
        return PrecisionEvent(step=step, rel_l2=logits, worst=worst)


def probe_batch(batch: Batch) -> Batch:
    """The first tokens of the batch's first row, each supervised with the row read backwards: what a model
    knows by heart (a chat's preamble) leaves a gradient of cancelled remainders, whose relL2 says nothing."""
    width = min(MAX_TOKENS, max(2, int(np.count_nonzero(batch.document_ids[0] >= 0))))
    ids, positions, documents = (
        part[:1, :width].copy() for part in (batch.input_ids, batch.positions, batch.document_ids)
    )
    return Batch(input_ids=ids, labels=ids[:, ::-1].copy(), positions=positions, document_ids=documents)


def parameters(model: Qwen2Config) -> int:
    """Weights of the model: its matrices, norms and biases left out, and a tied head not counted twice."""
    shapes = [model.projection_shape(projection) for projection in PROJECTIONS]
    layers = model.num_hidden_layers * sum(rows * columns for rows, columns in shapes)
    heads = 1 if model.tie_word_embeddings else 2
    return layers + heads * model.vocab_size * model.hidden_size
