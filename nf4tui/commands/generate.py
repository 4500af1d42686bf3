"""`nf4tui generate`: the answer to one prompt or conversation, written as it comes."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from nf4tui.data.conversation import Conversation
    from nf4tui.inference.answer import Answer
    from nf4tui.inference.sampling import Sampling


def run(
    *,
    model: str | None = None,
    adapter: str | None = None,
    prompt: str | None = None,
    messages: str | None = None,
    record: int = 1,
    system: str | None = None,
    device: str = "auto",
    max_tokens: int = 256,
    sampling: "Sampling",
    stop: Sequence[str] = (),
    compare: bool = False,
    as_json: bool = False,
) -> int:
    """Writes the answer to stdout. Of `messages`, a last assistant turn is left out and generated anew.
    compare: the base model's answer, too.

    Raises Nf4tuiError.
    """
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.data.chat import prompt_ids
    from nf4tui.inference.answer import Answer
    from nf4tui.inference.context import Context
    from nf4tui.inference.load import load

    check(sampling, max_tokens, stop)
    if compare and adapter is None:
        raise InputError("--compare: needs --adapter, whose answer stands beside the base model's")
    conversation = _conversation(prompt, messages, record, system)
    loaded = load(choose_model(model, () if messages is None else (messages,)), adapter, device)
    ids = prompt_ids(conversation, loaded.tokenizer)
    room = loaded.window - len(ids)
    if room < 1:
        raise InputError(f"the prompt has {len(ids)} tokens, but the model takes {loaded.window}; shorten it")
    engines = {"base": loaded.base, "adapter": loaded.engine} if compare else {"": loaded.engine}
    answers = {
        name: Answer(
            Context(engine),
            ids,
            loaded.tokenizer,
            max_tokens=min(max_tokens, room),
            sampling=sampling,
            stop=stop,
        )
        for name, engine in engines.items()
    }
    if as_json:
        _print_json(answers, len(ids))
        return 0
    for name, answer in answers.items():
        if name:
            sys.stdout.write(f"{name}:\n")
        show(answer)
    return 0


def check(sampling: "Sampling", max_tokens: int, stop: Sequence[str]) -> None:
    """Raises InputError that names the flag out of range."""
    sampling.check()
    if max_tokens < 1:
        raise InputError(f"--max-tokens {max_tokens}: must be at least 1")
    if not all(stop):
        raise InputError("--stop: is empty; give it text")
    for text in stop:
        check_text("--stop", text)


def check_text(name: str, text: str) -> None:
    """Raises InputError for what was no valid UTF-8 where it came from."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{name}: is not valid UTF-8")


def show(answer: "Answer") -> None:
    """Writes an answer to stdout as it comes, and to stderr where it was cut."""
    from nf4tui.sanitize import visible

    for piece in answer:
        sys.stdout.write(visible(piece))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if answer.finish == "length":
        print(f"(stopped after {answer.tokens} tokens)", file=sys.stderr)


def _conversation(
    prompt: str | None, messages: str | None, record: int, system: str | None
) -> "Conversation":
    from nf4tui.data.conversation import Conversation, Message

    if (prompt is None) == (messages is None):
        raise InputError("give one of --prompt TEXT and --messages FILE")
    if messages is not None:
        if system is not None:
            raise InputError("--system goes with --prompt; in --messages it is the first message")
        from nf4tui.inference.conversation_file import read_conversation

        conversation, count = read_conversation(messages, record)
        if count > 1:
            print(f"(record {record} of {count}; --record chooses another)", file=sys.stderr)
        return conversation
    if record != 1:
        raise InputError("--record goes with --messages")
    assert prompt is not None  # one of the two is
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise InputError("standard input: is not valid UTF-8") from None
    if not prompt.strip():
        raise InputError("--prompt: is empty; give it text")
    for name, text in (("--prompt", prompt), ("--system", system or "")):
        check_text(name, text)
    before = () if system is None else (Message("system", system),)
    return Conversation((*before, Message("user", prompt)))


def _print_json(answers: "dict[str, Answer]", prompt_tokens: int) -> None:
    """One object; with several answers, one field a name."""
    found: dict[str, Any] = {}
    for name, answer in answers.items():
        text = "".join(answer)
        found[name] = {"text": text, "tokens": answer.tokens, "finish": answer.finish}
    fields = found.get("", found)
    print(json.dumps({"event": "generate", "prompt_tokens": prompt_tokens, **fields}))
