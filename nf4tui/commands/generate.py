"""`nf4tui generate`: the answer to one prompt or conversation, written as it comes."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from nf4tui.data.conversation import Conversation
    from nf4tui.inference.load import Loaded
    from nf4tui.inference.sampling import Sampling


def run(
    *,
    model: str | None = None,
    adapter: str | None = None,
    prompt: str | None = None,
    messages: str | None = None,
    system: str | None = None,
    device: str = "auto",
    max_tokens: int = 256,
    sampling: "Sampling",
    as_json: bool = False,
) -> int:
    """Writes the answer to stdout. Of `messages`, a last assistant turn is left out and generated anew.

    Raises Nf4tuiError.
    """
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.data.chat import prompt_ids
    from nf4tui.inference.load import load

    sampling.check()
    if max_tokens < 1:
        raise InputError(f"--max-tokens {max_tokens}: must be at least 1")
    conversation = _conversation(prompt, messages, system)
    loaded = load(choose_model(model, () if messages is None else (messages,)), adapter, device)
    ids = prompt_ids(conversation, loaded.tokenizer)
    room = loaded.window - len(ids)
    if room < 1:
        raise InputError(f"the prompt has {len(ids)} tokens, but the model takes {loaded.window}; shorten it")
    _answer(loaded, ids, min(max_tokens, room), sampling, as_json)
    return 0


def _conversation(prompt: str | None, messages: str | None, system: str | None) -> "Conversation":
    from nf4tui.data.conversation import Conversation, Message

    if (prompt is None) == (messages is None):
        raise InputError("give one of --prompt TEXT and --messages FILE")
    if messages is not None:
        if system is not None:
            raise InputError("--system goes with --prompt; in --messages it is the first message")
        from nf4tui.inference.conversation_file import read_conversation

        return read_conversation(messages)
    assert prompt is not None  # one of the two is
    if not prompt.strip():
        raise InputError("--prompt: is empty; give it text")
    for name, text in (("--prompt", prompt), ("--system", system or "")):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{name}: is not valid UTF-8")
    before = () if system is None else (Message("system", system),)
    return Conversation((*before, Message("user", prompt)))


def _answer(loaded: "Loaded", ids: list[int], most: int, sampling: "Sampling", as_json: bool) -> None:
    """Streams the answer as text, or prints it as one object at its end."""
    from nf4tui.inference.generate import generate_ids, stream_text
    from nf4tui.sanitize import visible

    count = 0

    def counted() -> Iterator[int]:
        nonlocal count
        tokens = generate_ids(loaded.engine, ids, loaded.tokenizer, max_tokens=most, sampling=sampling)
        for token in tokens:
            count += 1
            yield token

    pieces = stream_text(counted(), loaded.tokenizer)
    if as_json:
        text = "".join(pieces)
        finish = "length" if count == most else "stop"
        answer = {"event": "generate", "text": text, "prompt_tokens": len(ids), "tokens": count}
        print(json.dumps({**answer, "finish": finish}))
        return
    for piece in pieces:
        sys.stdout.write(visible(piece))
        sys.stdout.flush()
    sys.stdout.write("\n")
    if count == most:
        print(f"(stopped after {most} tokens)", file=sys.stderr)
