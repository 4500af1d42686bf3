"""A conversation to be answered, from a file: one JSON object, or a record of a JSONL file.

The object is that of the `messages` format, but it may end before an assistant's turn.
"""

from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.conversation import Conversation
from nf4tui.data.jsonl import JsonlFile, decode_line
from nf4tui.data.messages import parse_messages, parse_tools
from nf4tui.data.problems import RecordProblemError
from nf4tui.errors import InputError
from nf4tui.small_files import open_regular
from nf4tui.user_path import user_path


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


def read_tools(path: str) -> tuple[dict[str, Any], ...]:
    """The tools in a JSON file: an array of objects, as `tools` of a record. Raises InputError."""
    try:
        with open_regular(user_path(path)) as file:
            return parse_tools(strict_json.decode(file.read().decode("utf-8")))
    except OSError as error:
        raise InputError(f"--tools {path}: cannot be read ({error.strerror})") from None
    except strict_json.JsonProblemError as problem:
        raise InputError(f"--tools {path}: {problem.message} (its character {problem.column})") from None
    except UnicodeDecodeError:
        raise InputError(f"--tools {path}: is not text in UTF-8") from None
    except RecordProblemError as problem:
        raise InputError(f"--tools {path}: {problem.message}") from None


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
