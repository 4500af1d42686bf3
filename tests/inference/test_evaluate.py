"""exact_match counts an answer as right when its calls, or its text, are the reference's."""

from typing import Any

import numpy as np
import pytest

from nf4tui.data.chat import tokenize
from nf4tui.data.chatml import answer_text, render
from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.samples import Sample
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.engine import Batch, LossSum
from nf4tui.inference.evaluate import exact_matches, is_right, loss_of

CALL = ToolCall("weather", {"city": "Paris", "days": 2})
OTHER = ToolCall("weather", {"city": "Rome", "days": 2})


def tagged(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


ONE = tagged('{"name": "weather", "arguments": {"city": "Paris", "days": 2}}')
TWO = tagged('{"name": "weather", "arguments": {"city": "Rome", "days": 2}}')


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (ONE, True),
        ("Let me see.\n" + ONE, True),
        (tagged('{"arguments": {"days": 2.0, "city": "Paris"}, "name": "weather"}'), True),
        (TWO, False),
        (ONE + "\n" + TWO, False),
        (ONE + "\n" + ONE, False),
        ("", False),
        ("weather Paris 2", False),
        (ONE.replace("</tool_call>", ""), False),
        (tagged('{"name": "weather"}'), False),
        (tagged('{"name": "weather", "arguments": {"city": "Paris"}}'), False),
        (tagged('{"name": "weather", "arguments": {"city": "Paris", "days": true}}'), False),
    ],
)
def test_a_turn_that_calls_a_tool_is_right_when_name_and_arguments_are(text: str, right: bool) -> None:
    assert is_right(text, Message("assistant", "", (CALL,))) == right


@pytest.mark.parametrize(
    ("text", "right"), [(ONE + "\n" + TWO, True), (TWO + "\n" + ONE, False), (ONE, False), ("", False)]
)
def test_all_calls_must_be_there_in_order(text: str, right: bool) -> None:
    assert is_right(text, Message("assistant", "", (CALL, OTHER))) == right


@pytest.mark.parametrize(
    ("text", "right"), [("Yes.", True), (" Yes.\n", True), ("yes.", False), ("", False), ("Yes. No.", False)]
)
def test_a_turn_of_text_is_right_when_its_stripped_text_is(text: str, right: bool) -> None:
    assert is_right(text, Message("assistant", "Yes.")) == right


def sample(tokenizer: ChatTokenizer, *messages: Message) -> Sample:
    conversation = Conversation(messages)
    tokens = tokenize(render(conversation, tokenizer.form.style), tokenizer)
    return Sample(tokens.ids, tokens.supervised, "x:1", conversation)


def test_the_last_answer_is_generated_from_what_stands_before_it_and_nothing_of_it(
    tokenizer: ChatTokenizer, script: Any
) -> None:
    turns = (Message("user", "a?"), Message("assistant", "b"), Message("user", "c?"))
    samples = [
        sample(tokenizer, *turns, Message("assistant", "right")),
        sample(tokenizer, *turns, Message("assistant", "", (CALL,)), Message("tool", "sun"), *turns[2:]),
    ]
    engine = script(tokenizer, [tokenizer.encode_text("right"), tokenizer.encode_text("wrong")])
    assert list(exact_matches(engine, samples, tokenizer, 10_000)) == [True, False]
    for prompt, prefix in zip(engine.prompts, samples, strict=True):
        assert prompt == prefix.ids[: len(prompt)].tolist()
        assert tokenizer.decode(prompt).endswith("c?<|im_end|>\n<|im_start|>assistant\n")


def test_the_right_tool_call_fits_into_the_room_for_an_answer(tokenizer: ChatTokenizer, script: Any) -> None:
    last = Message("assistant", "", (CALL,))
    answer = tokenizer.encode_text(answer_text(last))
    engine = script(tokenizer, [answer])
    assert list(
        exact_matches(engine, [sample(tokenizer, Message("user", "w?"), last)], tokenizer, 10_000)
    ) == [True]


def test_an_answer_that_never_ends_is_wrong_and_cut_short(tokenizer: ChatTokenizer, script: Any) -> None:
    endless = tokenizer.encode_text("Yes" * 5000)
    one = sample(tokenizer, Message("user", "a?"), Message("assistant", "Yes"))
    engine = script(tokenizer, [endless, endless])
    assert list(exact_matches(engine, [one], tokenizer, 10_000)) == [False]
    assert engine.rooms[0] < 2 * len(one.ids) + 100
    window = len(one.ids) - 2
    assert list(exact_matches(engine, [one], tokenizer, window)) == [False]
    assert engine.rooms[1] == window


def test_the_loss_is_weighted_by_tokens_over_every_sample_once(tokenizer: ChatTokenizer) -> None:
    class Counting:
        def evaluate(self, batch: Batch) -> LossSum:
            targets = batch.targets[batch.targets >= 0]
            return LossSum(float(targets.sum()), len(targets))

    samples = [
        sample(tokenizer, Message("user", "a?"), Message("assistant", "x" * count)) for count in (1, 40, 7)
    ]
    engine: Any = Counting()
    total = loss_of(engine, samples, batch_size=2, seq_len=256)
    supervised = np.concatenate([one.ids[one.supervised] for one in samples])
    assert (total.total, total.tokens) == (float(supervised.sum()), len(supervised))
