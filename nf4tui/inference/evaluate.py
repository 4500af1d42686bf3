"""Held-out loss and exact match.

exact_match: the share of conversations whose last assistant turn is generated right, greedily, from what
comes before it. Where that turn calls tools, the answer must hold the same calls, equal in name and
arguments and in order; else the stripped text must be equal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nf4tui.data.batches import evaluation_batches
from nf4tui.data.chat import parse_tool_calls, prompt_ids
from nf4tui.data.conversation import Conversation, Message
from nf4tui.data.samples import Sample
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.engine import Engine, LossSum
from nf4tui.inference.generate import generate_ids
from nf4tui.inference.sampling import Sampling

_SPARE = 64


def loss_of(engine: Engine, samples: Sequence[Sample], *, batch_size: int, seq_len: int) -> LossSum:
    """The summed loss over all supervised tokens of the samples."""
    batches = evaluation_batches(samples, batch_size=batch_size, seq_len=seq_len)
    parts = [engine.evaluate(batch) for batch in batches]
    return LossSum(sum(part.total for part in parts), sum(part.tokens for part in parts))


def exact_matches(
    engine: Engine, samples: Iterable[Sample], tokenizer: ChatTokenizer, window: int
) -> Iterator[bool]:
    """Whether each sample's last assistant turn is generated right, one after the other.

    window: most tokens of prompt and answer together. An answer is cut where it is longer than the right
    one by half of the sample and a bit. An answer that is cut is wrong: it did not end.
    Raises ValueError for a sample that is no conversation.
    """
    for sample in samples:
        conversation = sample.record
        if not isinstance(conversation, Conversation):
            raise ValueError(f"{sample.source}: is no conversation")
        (end,) = conversation.supervised("last")
        asked = replace(conversation, messages=conversation.messages[: end + 1])
        prompt = prompt_ids(asked, tokenizer)
        longest = len(sample.ids) - len(prompt) + len(sample.ids) // 2 + _SPARE
        most = min(window - len(prompt), longest)
        ids = list(generate_ids(engine, prompt, tokenizer, max_tokens=most, sampling=Sampling()))
        ended = len(ids) < most
        yield ended and is_right(tokenizer.decode(ids), conversation.messages[end])


def is_right(text: str, right: Message) -> bool:
    """Whether generated text is the assistant turn `right`."""
    if right.tool_calls:
        # None (malformed) and [] (no call at all) equal no turn that calls tools.
        return parse_tool_calls(text) == list(right.tool_calls)
    return text.strip() == right.content.strip()
