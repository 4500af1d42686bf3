"""Records: which format a file is in, and each of its lines as a Conversation.

A file holds one format, that of its first record that has one, or the one that was asked for:
- `messages`: {"messages": [...], "tools": [...]} (messages.py);
- `prompt-completion`: {"prompt": text, "completion": text}, which becomes one user turn and one assistant
  turn in the model's chat form, so that training and generation use the same tokens.
`conversations`, `alpaca` and `text` are recognised, and refused as not supported.
"""

from collections.abc import Callable, Iterator
from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.jsonl import BadLineError, JsonlFile, Line, decode_line
from nf4tui.data.messages import RecordProblemError, parse_messages, shown
from nf4tui.errors import InputError

__all__ = ["FORMATS", "Conversation", "Message", "RecordFile", "ToolCall", "detect_format"]

FORMATS = ("messages", "conversations", "prompt-completion", "alpaca", "text")

_KEYS = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "prompt-completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
    "text": ("text",),
}


def detect_format(record: dict[str, Any]) -> str | None:
    """The first format all of whose keys `record` has."""
    for name, keys in _KEYS.items():
        if all(key in record for key in keys):
            return name
    return None


class RecordFile:
    """Iterates over the conversations of one file, once.

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

    def __iter__(self) -> Iterator[Conversation]:
        for line in self.file:
            self.records += 1
            try:
                yield self._conversation(line)
            except BadLineError as error:
                if self._on_bad is None:
                    raise
                self._on_bad(error)

    def _conversation(self, line: Line) -> Conversation:
        text, record = decode_line(line)
        if not self._forced:
            self._settle_format(line, record)
        parse = _PARSERS.get(self.format or "")
        if parse is None:
            raise InputError(
                f"{line.source}:1: the format {self.format} is not supported yet;"
                f" convert the file to {' or '.join(_PARSERS)}"
            )
        for key in _KEYS[self.format or ""]:
            if key not in record:
                raise line.error(1, f"the record has no '{key}', which --format {self.format} needs")
        try:
            return parse(record, line.source)
        except RecordProblemError as problem:
            raise line.error(strict_json.column_of(text, problem.path), problem.message) from None

    def _settle_format(self, line: Line, record: dict[str, Any]) -> None:
        found = detect_format(record)
        if found is None:
            keys = ", ".join(shown(key) for key in list(record)[:6]) or "none"
            wanted = f"those of {self.format}" if self.format else "messages, or prompt and completion"
            raise line.error(1, f"the record has the keys {keys}, but needs {wanted}")
        if self.format is None:
            self.format, self._first_line = found, line.number
        elif found != self.format:
            raise InputError(
                f"{line.source}:1: this record is in the format {found}, but the file is {self.format} since"
                f" line {self._first_line}; put each format in a file of its own, or name one with --format"
            )


def _parse_prompt_completion(record: dict[str, Any], source: str) -> Conversation:
    messages = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        text = record.get(key)
        if not isinstance(text, str):
            raise RecordProblemError((key,), f"'{key}' must be text; got {shown(text)}")
        if not text.strip():
            raise RecordProblemError((key,), f"an empty '{key}'; give it text or drop the record")
        messages.append(Message(role, text))
    return Conversation(tuple(messages), (), source)


_PARSERS: dict[str, Callable[[dict[str, Any], str], Conversation]] = {
    "messages": parse_messages,
    "prompt-completion": _parse_prompt_completion,
}
