"""A conversation to be answered, from a file: one JSON object, or a record of a JSONL file.

The object is that of the `messages` format, but it may end before an assistant's turn.
"""

from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.conversation import Conversation
from nf4tui.data.jsonl import JsonlFile, decode_line
from nf4tui.data.messages import parse_messages
from nf4tui.data.problems import RecordProblemError
from nf4tui.errors import InputError


def read_conversation(path: str, number: int = 1) -> tuple[Conversation, int]:
    """The `number`-th conversation in `path`, cut before its last assistant turn where it ends with one, and
    how many there are.

    Raises InputError with file, line and column.
    """
    lines = list(JsonlFile(path))
    if not lines:
        raise InputError(f"{path}: is empty; write one JSON object with `messages`")
    whole = _one_object(b"\n".join(line.data for line in lines)) if len(lines) > 1 else None
    count = 1 if whole else len(lines)
    if not 1 <= number <= count:
        raise InputError(f"--record {number}: {path} holds {count} records")
    text, record = whole or decode_line(lines[number - 1])
    messages = record.get("messages")
    if isinstance(messages, list) and messages and not _by_assistant(messages[-1]):
        # The rules of a training record want an answer; prompt_ids leaves this one out again.
        record = {**record, "messages": [*messages, {"role": "assistant", "content": "-"}]}
    try:
        found = parse_messages(record, lines[number - 1].source)
    except RecordProblemError as problem:
        place = f":{strict_json.column_of(text, problem.path)}" if "\n" not in text else ""
        raise InputError(f"{lines[number - 1].source}{place}: {problem.message}") from None
    return Conversation(found.messages[:-1], found.tools, found.source), count


def _one_object(data: bytes) -> tuple[str, dict[str, Any]] | None:
    """(text, object) of a file that is one JSON object over several lines; None if it is not."""
    try:
        text = data.decode("utf-8")
        value = strict_json.decode(text)
    except (UnicodeDecodeError, strict_json.JsonProblemError):
        return None
    return (text, value) if isinstance(value, dict) else None


def _by_assistant(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"
