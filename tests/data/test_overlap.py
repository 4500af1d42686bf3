"""Validation samples that training has seen are found, and nothing else is."""

import numpy as np

from nf4tui.data.overlap import find_overlap
from nf4tui.data.samples import Sample


def sample(name: str, ids: list[int], first: int = 2) -> Sample:
    return Sample(np.array(ids, np.int32), np.arange(len(ids)) >= first, name)


def test_equal_samples_and_equal_prompts_are_told_apart() -> None:
    training = [sample("a:1", [1, 2, 3, 4]), sample("a:2", [5, 6, 7])]
    validation = [
        sample("b:1", [1, 2, 3, 4]),
        sample("b:2", [1, 2, 9, 9]),
        sample("b:3", [8, 2, 3, 4]),
        sample("b:4", [5, 6, 7, 7]),
    ]
    overlap = find_overlap(training, validation)
    assert (overlap.samples.count, overlap.samples.sources) == (1, ["b:1"])
    assert (overlap.prompts.count, overlap.prompts.sources) == (2, ["b:2", "b:4"])


def test_documents_have_no_prompt_in_common() -> None:
    overlap = find_overlap([sample("a:1", [1, 2, 3], first=1)], [sample("b:1", [1, 5, 3], first=1)])
    assert overlap.samples.count == overlap.prompts.count == 0
