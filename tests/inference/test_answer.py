"""Stop texts, kept caches and the repetition penalty."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError
from nf4tui.inference.answer import Answer
from nf4tui.inference.context import Context
from nf4tui.inference.generate import continue_ids
from nf4tui.inference.sampling import Sampling, choose

GREEDY = Sampling()


def answer(
    tokenizer: ChatTokenizer, script: Any, text: str, most: int = 99, stop: tuple[str, ...] = ()
) -> Answer:
    engine = script(tokenizer, [tokenizer.encode_text(text)])
    return Answer(Context(engine), [1], tokenizer, max_tokens=most, sampling=GREEDY, stop=stop)


@pytest.mark.parametrize(
    ("stop", "shown", "finish"),
    [
        ((), "one two three", "stop"),
        (("two",), "one ", "stop_text"),
        (("o t",), "one tw", "stop_text"),
        (("three", "ne"), "o", "stop_text"),
        (("threes", "x"), "one two three", "stop"),
        (("o",), "", "stop_text"),
        (("e",), "on", "stop_text"),
    ],
)
def test_an_answer_ends_before_a_stop_text_wherever_tokens_break_it(
    tokenizer: ChatTokenizer, script: Any, stop: tuple[str, ...], shown: str, finish: str
) -> None:
    found = answer(tokenizer, script, "one two three", stop=stop)
    pieces = list(found)
    assert ("".join(pieces), found.text, found.finish) == (shown, shown, finish)
    assert all(pieces)


def test_nothing_of_a_stop_text_is_ever_shown(tokenizer: ChatTokenizer, script: Any) -> None:
    @given(text=st.text("ab", max_size=12), stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
    def check(text: str, stop: list[str]) -> None:
        found = answer(tokenizer, script, text, stop=tuple(stop))
        shown = "".join(found)
        # Bytes are tokens here: the stop text that is whole first ends the answer where it began.
        ends = {text.find(item) + len(item): text.find(item) for item in stop if item in text}
        if ends:
            starts = [text.find(item) for item in stop if item in text[: min(ends)]]
            assert (shown, found.finish) == (text[: min(starts)], "stop_text")
        else:
            assert (shown, found.finish) == (text, "stop")

    check()


def test_an_answer_that_is_cut_says_so(tokenizer: ChatTokenizer, script: Any) -> None:
    found = answer(tokenizer, script, "hello", most=3)
    assert "".join(found) == "hel"
    assert (found.finish, found.tokens) == ("length", 3)
    whole = answer(tokenizer, script, "hello", most=6)
    assert "".join(whole) == "hello"
    assert (whole.finish, whole.tokens) == ("stop", 5)


class Counting:
    """An engine whose next token is a function of all tokens before it; counts what it is fed."""

    def __init__(self, size: int) -> None:
        self.size, self.fed, self.rooms = size, 0, []

    def start_decoding(self, max_tokens: int) -> "Counting.Decoder":
        self.rooms.append(max_tokens)
        return Counting.Decoder(self, max_tokens)

    class Decoder:
        def __init__(self, engine: "Counting", room: int) -> None:
            self.engine, self.room, self.held = engine, room, []

        def extend(self, ids: Any) -> Any:
            self.engine.fed += len(ids)
            self.held += list(ids)
            assert len(self.held) <= self.room
            logits = np.zeros(self.engine.size, np.float32)
            logits[hash(tuple(self.held)) % self.engine.size] = 1
            return logits


def test_a_prompt_that_goes_on_from_the_last_costs_only_what_is_new(tokenizer: ChatTokenizer) -> None:
    engine: Any = Counting(tokenizer.size)
    context = Context(engine, window=2000)
    prompt = [5, 6, 7]
    for turn in range(3):
        fresh: Any = Counting(tokenizer.size)
        alone = list(continue_ids(Context(fresh), prompt, tokenizer, max_tokens=4, sampling=GREEDY))
        before = engine.fed
        kept = list(continue_ids(context, prompt, tokenizer, max_tokens=4, sampling=GREEDY))
        assert kept == alone
        assert engine.fed - before == len(prompt) - context.reused + max(0, len(kept) - (len(kept) == 4))
        assert (context.reused > 0) == (turn > 0)
        prompt = [*prompt, *kept, 9, 9]
    list(continue_ids(context, [5, 6, 8], tokenizer, max_tokens=4, sampling=GREEDY))
    assert context.reused == 0  # another conversation
    list(continue_ids(context, [5, 6, 8], tokenizer, max_tokens=4, sampling=GREEDY))
    assert context.reused == 0  # the same one asked again: its logits are gone


def test_a_cache_grows_up_to_the_window(tokenizer: ChatTokenizer) -> None:
    engine: Any = Counting(tokenizer.size)
    context = Context(engine, window=3000)
    for length in (10, 900, 1010, 1200, 2300, 2900):
        context.prompt([1] * length, 20)
    assert engine.rooms == [1024, 2060, 3000]
    assert context.reused == 2300
    small: Any = Counting(tokenizer.size)
    Context(small, window=50).prompt([1] * 10, 5)
    Context(small).prompt([1] * 10, 5)
    assert small.rooms == [50, 15]


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_repetition_penalty_is_ctrls(penalty: float, temperature: float) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        logits = random.standard_normal(50).astype(np.float32) * 3
        seen = random.random(50) < 0.4
        right = logits.copy()
        for token in np.flatnonzero(seen):
            right[token] = right[token] / penalty if right[token] > 0 else right[token] * penalty
        sampling = Sampling(temperature=temperature, repetition_penalty=penalty, top_k=9)
        plain = Sampling(temperature=temperature, top_k=9)
        assert choose(logits, sampling, 3, seen) == choose(right.astype(np.float32), plain, 3)


def test_the_prompt_and_the_answer_are_penalised(tokenizer: ChatTokenizer) -> None:
    class Fixed:
        def start_decoding(self, max_tokens: int) -> "Fixed":
            return self

        def extend(self, ids: Any) -> Any:
            logits = np.zeros(tokenizer.size, np.float32)
            logits[[10, 11, 12]] = 3.0, 2.0, 1.0
            return logits

    engine: Any = Fixed()
    sampling = Sampling(repetition_penalty=100.0)
    assert list(continue_ids(Context(engine), [10], tokenizer, max_tokens=3, sampling=sampling)) == [
        11,
        12,
        10,
    ]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_penalty_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="--repetition-penalty"):
        Sampling(repetition_penalty=value).check()
