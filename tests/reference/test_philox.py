import numpy as np
import pytest

from nf4tui.philox import Purpose, philox4x32, random_words

# Random123's kat_vectors, `philox4x32 10`: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_published_vectors(counter: str, key: str, result: str) -> None:
    first, second = _words(key)
    assert philox4x32(_words(counter), (first, second)).tolist() == _words(result)


def test_a_vector_of_counters_gives_what_each_alone_gives() -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, (5, 3, 4))
    together = philox4x32(counters, (1, 2))
    assert together.shape == (5, 3, 4) and together.dtype == np.uint32
    np.testing.assert_array_equal(together[4, 1], philox4x32(counters[4, 1], (1, 2)))


def test_every_part_of_the_counter_changes_the_words() -> None:
    blocks = np.arange(3)
    base = random_words(0, Purpose.DROPOUT, "a", blocks, step=1, micro_batch=1)
    others = [
        random_words(1, Purpose.DROPOUT, "a", blocks, step=1, micro_batch=1),
        random_words(2**32, Purpose.DROPOUT, "a", blocks, step=1, micro_batch=1),
        random_words(0, Purpose.INITIALISE, "a", blocks, step=1, micro_batch=1),
        random_words(0, Purpose.DROPOUT, "b", blocks, step=1, micro_batch=1),
        random_words(0, Purpose.DROPOUT, "a", blocks + 3, step=1, micro_batch=1),
        random_words(0, Purpose.DROPOUT, "a", blocks, step=2, micro_batch=1),
        random_words(0, Purpose.DROPOUT, "a", blocks, step=1, micro_batch=0),
    ]
    for other in others:
        assert not np.isin(other, base).any()


@pytest.mark.parametrize("place", [{"step": 2**32}, {"micro_batch": 2**28}, {"step": -1}])
def test_a_counter_that_would_wrap_is_refused(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        random_words(0, Purpose.DROPOUT, "a", np.arange(1), **place)


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="more elements"):
        random_words(0, Purpose.DROPOUT, "a", np.array([2**32]))
