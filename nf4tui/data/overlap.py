"""Validation samples that training has seen: their loss says nothing about new data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nf4tui.data.report import Tally
from nf4tui.data.samples import Sample


@dataclass(frozen=True, slots=True)
class Overlap:
    """samples: validation samples that equal a training sample, token for token. prompts: others that only
    begin with the same tokens, up to the first that is supervised."""

    samples: Tally = field(default_factory=Tally)
    prompts: Tally = field(default_factory=Tally)


def find_overlap(training: Sequence[Sample], validation: Sequence[Sample]) -> Overlap:
    """What `validation` has in common with `training`."""
    seen = {sample.ids.tobytes() for sample in training}
    asked = {prompt for sample in training if (prompt := _prompt(sample))}
    overlap = Overlap()
    for sample in validation:
        if sample.ids.tobytes() in seen:
            overlap.samples.add(sample.source)
        elif _prompt(sample) in asked:
            overlap.prompts.add(sample.source)
    return overlap


def _prompt(sample: Sample) -> bytes:
    """The tokens before the first supervised one; empty for a document, which has no prompt."""
    first = int(sample.supervised.argmax())
    return sample.ids[:first].tobytes() if first > 1 else b""
