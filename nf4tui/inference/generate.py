"""Text from a model: token by token, as pieces that are whole characters."""

from collections.abc import Iterator, Sequence

from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.engine import Engine
from nf4tui.inference.sampling import Sampling, choose

_INCOMPLETE = "\ufffd"  # what the decoder writes for bytes that are no whole character
_WINDOW = 64


def generate_ids(
    engine: Engine, prompt: Sequence[int], tokenizer: ChatTokenizer, *, max_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Up to max_tokens tokens after `prompt`; ends before a token that ends a turn.

    A model may have more rows than its tokenizer has ids: those are never chosen.
    """
    if max_tokens < 1:
        return
    decoder = engine.start_decoding(len(prompt) + max_tokens)
    logits = decoder.extend(prompt)
    for number in range(max_tokens):
        token = choose(logits[: tokenizer.size], sampling, number)
        if token in tokenizer.eos_token_ids:
            return
        yield token
        if number + 1 < max_tokens:
            logits = decoder.extend([token])


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
