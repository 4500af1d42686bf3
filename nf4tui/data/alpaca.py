"""The `alpaca` format: one instruction and its answer, as a Conversation.

    {"instruction": text, "input": text, "output": text, "system": text, "history": [[text, text], ...]}

`output` may be called `response`, and `input` may be called `context` (Dolly); `input`, `system` and `history`
may be missing, null or empty. The instruction and a non-empty input become one user turn, with a blank line
between them. `history` holds earlier (instruction, answer) pairs. Alpaca's own "Below is an instruction"
frame is not added: the model's chat form takes its place, in training as in generation.
"""

from typing import Any

from nf4tui.data.conversation import Conversation, Message
from nf4tui.data.problems import RecordProblemError, shown

ANSWERS = ("output", "response")
INPUTS = ("input", "context")


def parse_alpaca(record: dict[str, Any], source: str) -> Conversation:
    """Raises RecordProblemError."""
    answer_key = _one_of(record, ANSWERS)
    input_key = _one_of(record, INPUTS)
    if answer_key is None:
        raise RecordProblemError((), "the record has neither 'output' nor 'response'; add one")
    messages = []
    if system := _optional(record, "system"):
        messages.append(Message("system", system))
    messages += _history(record.get("history"))
    question = _required(record, "instruction")
    if input_key is not None and (given := _optional(record, input_key)).strip():
        question = f"{question}\n\n{given}"
    messages += [Message("user", question), Message("assistant", _required(record, answer_key))]
    return Conversation(tuple(messages), (), source)


def _one_of(record: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    """The key of `keys` that the record has. Two of them would leave open which one is meant."""
    found = [key for key in keys if key in record]
    if len(found) > 1:
        raise RecordProblemError((found[1],), f"the record has '{found[0]}' and '{found[1]}'; keep one")
    return found[0] if found else None


def _required(record: dict[str, Any], key: str) -> str:
    text = record.get(key)
    if not isinstance(text, str):
        raise RecordProblemError((key,), f"'{key}' must be text; got {shown(text)}")
    if not text.strip():
        raise RecordProblemError((key,), f"an empty '{key}'; give it text or drop the record")
    return text


def _optional(record: dict[str, Any], key: str) -> str:
    text = record.get(key)
    if text is not None and not isinstance(text, str):
        raise RecordProblemError((key,), f"'{key}' must be text; got {shown(text)}")
    return text or ""


def _history(value: Any) -> list[Message]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RecordProblemError(("history",), f"'history' must be an array of pairs; got {shown(value)}")
    messages = []
    for index, pair in enumerate(value):
        texts = isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        if not texts or not all(text.strip() for text in pair):
            raise RecordProblemError(
                ("history", index), f"a turn of 'history' must be [question, answer]; got {shown(pair)}"
            )
        messages += [Message("user", pair[0]), Message("assistant", pair[1])]
    return messages
