"""Records: which format a file is in, and each of its lines as a Conversation or a Document.

A file holds one format, that of its first record that has one, or the one that was asked for:
- `messages`: {"messages": [...], "tools": [...]} (messages.py);
- `conversations`: {"conversations": [{"from", "value"}, ...]} (sharegpt.py);
- `prompt-completion`: {"prompt": text, "completion": text}, which becomes one user turn and one assistant
  turn in the model's chat form, so that training and generation use the same tokens; or two arrays of
  messages instead of the texts;
- `alpaca`: {"instruction", "input", "output"} (alpaca.py);
- `text`: {"text": text}, a document without turns, every token of it learnt.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.alpaca import ANSWERS, parse_alpaca
from nf4tui.data.conversation import Conversation, Document, Message, Record
from nf4tui.data.jsonl import BadLineError, JsonlFile, Line, decode_line
from nf4tui.data.messages import parse_messages
from nf4tui.data.problems import RecordProblemError, shown
from nf4tui.data.sharegpt import parse_conversations
from nf4tui.errors import InputError

FORMATS = ("messages", "conversations", "prompt-completion", "alpaca", "text")

_KEYS_SHOWN = "messages; conversations; prompt and completion; instruction and output; or text"

# What a record of each format has: one key of every group.
_KEYS = {
    "messages": (("messages",),),
    "conversations": (("conversations",),),
    "prompt-completion": (("prompt",), ("completion",)),
    "alpaca": (("instruction",), ANSWERS),
    "text": (("text",),),
}


def detect_format(record: dict[str, Any]) -> str | None:
    """The first format all of whose keys `record` has."""
    for name, groups in _KEYS.items():
        if all(any(key in record for key in group) for group in groups):
            return name
    return None


class RecordFile:
    """Iterates over the records of one file, once.

    format: `auto` or one of FORMATS; afterwards the format found (None: no record had one).
    on_bad: called with the error of each line that cannot be used, which is then skipped; None: raised.
    records: lines that held a record, good or bad. Raises InputError, BadLineError.
    """

    def __init__(
        self, path: str, format_name: str = "auto", on_bad: Callable[[BadLineError], None] | None = None
    ) -> None:
        if format_name != "auto" and format_name not in FORMATS:
            raise InputError(f"--format {format_name}: must be auto, {', '.join(FORMATS)}")
        self.file = JsonlFile(path)
        self.format: str | None = None if format_name == "auto" else format_name
        self.records = 0
        self._forced = format_name != "auto"
        self._first_line = 0
        self._on_bad = on_bad

    def __iter__(self) -> Iterator[Record]:
        for line in self.file:
            self.records += 1
            try:
                yield self._record(line)
            except BadLineError as error:
                if self._on_bad is None:
                    raise
                self._on_bad(error)

    def _record(self, line: Line) -> Record:
        text, record = decode_line(line)
        if not self._forced:
            self._settle_format(line, record)
        name = self.format or ""
        for group in _KEYS[name]:
            if not any(key in record for key in group):
                raise line.error(1, f"the record has no '{group[0]}', which --format {name} needs")
        try:
            return _PARSERS[name](record, line.source)
        except RecordProblemError as problem:
            raise line.error(strict_json.column_of(text, problem.path), problem.message) from None

    def _settle_format(self, line: Line, record: dict[str, Any]) -> None:
        found = detect_format(record)
        if found is None:
            keys = ", ".join(shown(key) for key in list(record)[:6]) or "none"
            wanted = f"those of {self.format}" if self.format else f"those of a format: {_KEYS_SHOWN}"
            raise line.error(1, f"the record has the keys {keys}, but needs {wanted}")
        if self.format is None:
            self.format, self._first_line = found, line.number
        elif found != self.format:
            raise InputError(
                f"{line.source}:1: this record is in the format {found}, but the file is {self.format} since"
                f" line {self._first_line}; put each format in a file of its own, or name one with --format"
            )


def _parse_prompt_completion(record: dict[str, Any], source: str) -> Conversation:
    if isinstance(record.get("prompt"), list):
        return _parse_message_lists(record, source)
    messages = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        text = record.get(key)
        if not isinstance(text, str):
            raise RecordProblemError((key,), f"'{key}' must be text; got {shown(text)}")
        if not text.strip():
            raise RecordProblemError((key,), f"an empty '{key}'; give it text or drop the record")
        messages.append(Message(role, text))
    return Conversation(tuple(messages), (), source, completion=1)


def _parse_message_lists(record: dict[str, Any], source: str) -> Conversation:
    """Prompt and completion as two arrays of messages, one after the other."""
    for key in ("prompt", "completion"):
        if not isinstance(record[key], list):
            raise RecordProblemError((key,), f"'{key}' must be an array like the other one")
    both = [*record["prompt"], *record["completion"]]
    start = len(record["prompt"])
    try:
        conversation = parse_messages({**record, "messages": both}, source)
    except RecordProblemError as problem:
        raise RecordProblemError(_own_path(problem.path, start), problem.message) from None
    if not any(message.role == "assistant" for message in conversation.messages[start:]):
        raise RecordProblemError(("completion",), "'completion' has no assistant message; add one")
    return replace(conversation, completion=start)


def _own_path(path: strict_json.Path, start: int) -> strict_json.Path:
    """A path into the joined messages as one into `prompt` or `completion`."""
    if len(path) < 2 or path[0] != "messages":
        return path if path != ("messages",) else ("completion",)
    index = int(path[1])
    return ("prompt", index, *path[2:]) if index < start else ("completion", index - start, *path[2:])


def _parse_text(record: dict[str, Any], source: str) -> Document:
    text = record.get("text")
    if not isinstance(text, str):
        raise RecordProblemError(("text",), f"'text' must be text; got {shown(text)}")
    if not text.strip():
        raise RecordProblemError(("text",), "an empty 'text'; give it text or drop the record")
    return Document(text, source)


_PARSERS: dict[str, Callable[[dict[str, Any], str], Record]] = {
    "messages": parse_messages,
    "conversations": parse_conversations,
    "prompt-completion": _parse_prompt_completion,
    "alpaca": parse_alpaca,
    "text": _parse_text,
}
