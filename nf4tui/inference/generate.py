"""Text from a model: token by token, as pieces that are whole characters."""

from collections.abc import Iterator, Sequence

import numpy as np

from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.engine import Engine
from nf4tui.inference.context import Context
from nf4tui.inference.sampling import Sampling, choose

_INCOMPLETE = "\ufffd"  # what the decoder writes for bytes that are no whole character
_WINDOW = 64


def generate_ids(
    engine: Engine, prompt: Sequence[int], tokenizer: ChatTokenizer, *, max_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Up to max_tokens tokens after `prompt`; ends before a token that ends a turn."""
    return continue_ids(Context(engine), prompt, tokenizer, max_tokens=max_tokens, sampling=sampling)


def continue_ids(
    context: Context, prompt: Sequence[int], tokenizer: ChatTokenizer, *, max_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """As generate_ids, in a cache that may hold the beginning of the prompt.

    A model may have more rows than its tokenizer has ids: those are never chosen.
    """
    if max_tokens < 1:
        return
    seen = np.zeros(tokenizer.size, np.bool_)
    seen[list(prompt)] = True
    logits = context.prompt(prompt, max_tokens)
    for number in range(max_tokens):
        token = choose(logits[: tokenizer.size], sampling, number, seen)
        if token in tokenizer.eos_token_ids:
            return
        yield token
        seen[token] = True
        if number + 1 < max_tokens:
            logits = context.append(token)


def stream_text(ids: Iterator[int], tokenizer: ChatTokenizer) -> Iterator[str]:
    """The text of `ids` in pieces. A piece is held back while its last character lacks bytes."""
    pending: list[int] = []
    shown = ""
    for token in ids:
        pending.append(token)
        text = tokenizer.decode(pending)
        if text.endswith(_INCOMPLETE):
            continue
        yield text[len(shown) :]
        # A new window from time to time: decoding the whole answer with every token would cost its square.
        pending, shown = (pending, text) if len(pending) < _WINDOW else ([], "")
    broken = tokenizer.decode(pending)[len(shown) :]
    if broken:
        yield broken
