"""Tokens until the turn ends, as text in whole characters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import TrainingFailedError
from nf4tui.inference.generate import generate_ids, stream_text
from nf4tui.inference.sampling import Sampling

GREEDY = Sampling()


def test_generation_ends_before_the_end_of_the_turn(tokenizer: ChatTokenizer, script: Any) -> None:
    ids = tokenizer.encode_text("hello")
    engine = script(tokenizer, [ids])
    assert list(generate_ids(engine, [1, 2], tokenizer, max_tokens=50, sampling=GREEDY)) == ids
    assert engine.prompts == [[1, 2]]


def test_generation_stops_at_every_token_that_the_model_files_name(
    tokenizer: ChatTokenizer, script: Any
) -> None:
    end = tokenizer.control_token_id("<|endoftext|>")
    assert end != tokenizer.end_token_id
    engine = script(tokenizer, [[*tokenizer.encode_text("ab"), end, *tokenizer.encode_text("c")]])
    found = list(generate_ids(engine, [1], tokenizer, max_tokens=50, sampling=GREEDY))
    assert tokenizer.decode(found) == "ab"


@pytest.mark.parametrize("most", [0, 1, 3])
def test_generation_takes_no_more_tokens_or_room_than_it_was_given(
    tokenizer: ChatTokenizer, script: Any, most: int
) -> None:
    engine = script(tokenizer, [tokenizer.encode_text("hello")])
    found = list(generate_ids(engine, [1, 2], tokenizer, max_tokens=most, sampling=GREEDY))
    assert tokenizer.decode(found) == "hello"[:most]
    assert engine.rooms == ([2 + most] if most else [])


def test_a_row_beyond_the_tokenizer_is_never_chosen(tokenizer: ChatTokenizer, script: Any) -> None:
    class Beyond:
        def start_decoding(self, max_tokens: int) -> "Beyond":
            return self

        def extend(self, ids: list[int]) -> Any:
            logits = np.zeros(tokenizer.size + 10, np.float32)
            logits[tokenizer.size :], logits[7] = 9, 1
            return logits

    engine: Any = Beyond()
    assert list(generate_ids(engine, [1], tokenizer, max_tokens=2, sampling=GREEDY)) == [7, 7]


def test_logits_that_are_not_finite_are_an_error_not_a_token(tokenizer: ChatTokenizer) -> None:
    class Damaged:
        def start_decoding(self, max_tokens: int) -> "Damaged":
            return self

        def extend(self, ids: list[int]) -> Any:
            return np.full(tokenizer.size, np.nan, np.float32)

    engine: Any = Damaged()
    with pytest.raises(TrainingFailedError, match="not finite"):
        list(generate_ids(engine, [1], tokenizer, max_tokens=2, sampling=GREEDY))


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=100))
def test_the_pieces_are_whole_characters_and_make_up_the_text(tokenizer: ChatTokenizer, text: str) -> None:
    ids = tokenizer.encode_text(text)
    pieces = list(stream_text(iter(ids), tokenizer))
    assert "".join(pieces) == tokenizer.decode(ids) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_is_shown_as_soon_as_its_last_byte_is_there(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_text("a€b")
    assert len(ids) == 5
    assert list(stream_text(iter(ids), tokenizer)) == ["a", "€", "b"]


def test_a_character_that_never_ends_is_shown_as_broken(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_text("a€")[:-1]
    assert "".join(stream_text(iter(ids), tokenizer)) == tokenizer.decode(ids)
