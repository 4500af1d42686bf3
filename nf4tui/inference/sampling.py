"""Choosing the next token from logits: greedy, or temperature with top-k and top-p (nucleus) sampling.

Nucleus sampling: Holtzman et al. 2019, arXiv 1904.09751. Before all else, the repetition penalty p of CTRL
(Keskar et al. 2019, arXiv 1909.05858) on every token of the prompt and the answer so far: its logit is
divided by p where positive and multiplied by p where negative, as transformers does. The n-th choice is a
function of the logits, the tokens seen, the seed and n.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.errors import InputError, TrainingFailedError
from nf4tui.reference.softmax import softmax_forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """temperature 0: greedy, without top_p and top_k. top_k 0 and top_p 1: no restriction.
    repetition_penalty 1: none."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    repetition_penalty: float = 1.0

    def check(self) -> None:
        """Raises InputError that names the flag out of range."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"--temperature {self.temperature}: must be 0 or a positive number")
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top-p {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise InputError(f"--top-k {self.top_k}: must be 0 or positive")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InputError(f"--repetition-penalty {self.repetition_penalty}: must be a positive number")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"--seed {self.seed}: must be from 0 to 2^63 - 1")


def choose(
    logits: NDArray[Any], sampling: Sampling, number: int, seen: NDArray[np.bool_] | None = None
) -> int:
    """The token of logits [V]; `number` counts the tokens generated before it. seen [V]: the tokens that the
    repetition penalty is for.

    Raises TrainingFailedError where a logit is not finite: any choice would be arbitrary.
    """
    if not np.isfinite(logits).all():
        raise TrainingFailedError(f"token {number + 1}: the model's logits are not finite; it is damaged")
    if seen is not None and sampling.repetition_penalty != 1:
        penalty = logits.dtype.type(sampling.repetition_penalty)
        penalised = np.where(logits > 0, logits / penalty, logits * penalty)
        logits = np.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    # The maximum first: a tiny temperature must not turn infinity minus infinity into NaN.
    scores = logits[order].astype(np.float64)
    probabilities = softmax_forward((scores - scores[0]) / sampling.temperature)
    if sampling.top_p < 1:
        # Up to and with the token that crosses the threshold, so that one always stays.
        kept = int(np.searchsorted(probabilities.cumsum(), sampling.top_p)) + 1
        order, probabilities = order[:kept], probabilities[:kept]
    generator = np.random.Generator(np.random.Philox(key=np.array([sampling.seed, number], np.uint64)))
    sums = probabilities.cumsum()
    place = int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))
    return int(order[min(place, len(order) - 1)])
