"""A second opinion on data files: which lines of a JSONL file are refused, and which end the reading.

The rules are those stated by the reader's documentation, written down again over strict_oracle's values.
A line is blank, good, bad (it may be stepped over) or fatal (it may not).
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

BOM = b"\xef\xbb\xbf"
# UTF-32 and UTF-16 by their marks, gzip.
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff", b"\x1f\x8b")
_ROLES = ("system", "user", "assistant", "tool")
_SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
    **{role: role for role in _ROLES},
}


class BadRecordError(Exception):
    """The record breaks a rule."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """line: the first refused one; 0: the file as a whole; None: the file is accepted. The same with bad
    records skipped: skipping_line, and good, how many records are then used (0 where it is refused)."""

    line: int | None
    skipping_line: int | None
    good: int


def judge(data: bytes, json: ModuleType) -> Verdict:
    """`json`: the module strict_oracle."""
    lines = data.split(b"\n")
    ended = len(lines) - 1  # the lines that a newline follows
    reader = _Reader(json)
    first_refused, good = None, 0
    for number, line in enumerate(lines, 1):
        kind = reader.kind(number, line.removesuffix(b"\r"), line, ended=number <= ended)
        if kind in {"bad", "fatal"} and first_refused is None:
            first_refused = number
        if kind == "fatal":
            return Verdict(first_refused, number, 0)
        good += kind == "good"
    if not good:
        return Verdict(0 if first_refused is None else first_refused, 0, 0)
    return Verdict(first_refused, None, good)


class _Reader:
    def __init__(self, json: ModuleType) -> None:
        self._json = json
        self._format: str | None = None

    def kind(self, number: int, line: bytes, raw: bytes, *, ended: bool) -> str:
        """blank, good, bad or fatal. line: without its end; raw: with its carriage return."""
        if number == 1:
            head = raw[:4] + (b"\n" if ended else b"")
            if line.startswith(_OTHER_ENCODINGS) or (len(head) >= 4 and 2 <= head[:4].count(0) <= 3):
                return "fatal"
            line = line.removeprefix(BOM)
        if not line.strip(b" \t\r"):
            return "blank"
        try:
            return self._record_kind(self._object(line))
        except self._json.NotJsonError:
            return "bad" if ended else "fatal"  # torn
        except (BadRecordError, self._json.TooDeepError):
            return "bad"

    def _object(self, line: bytes) -> dict[str, Any]:
        fault = self._json.utf8_fault(line)
        if fault == "cut":
            raise self._json.NotJsonError
        _need(fault is None and not line.startswith(BOM))
        text = self._json.JsonText(line)
        _need(not text.faults and isinstance(text.value, dict))
        return dict(text.value)

    def _record_kind(self, record: dict[str, Any]) -> str:
        found = _format_of(record)
        if found is None:
            return "bad"
        if self._format not in (None, found):
            return "fatal"
        self._format = found
        getattr(self, f"_{found}")(record)
        return "good"

    def _messages(self, record: dict[str, Any]) -> None:
        self._conversation([self._message(item) for item in _filled_list(record["messages"])])
        _tools(record.get("tools"))

    def _conversations(self, record: dict[str, Any]) -> None:
        roles = [self._turn(item) for item in _filled_list(record["conversations"])]
        system = record.get("system")
        _need(system is None or isinstance(system, str))
        _need(not (system and roles[0] == "system"))
        self._conversation(roles)
        tools = record.get("tools")
        if isinstance(tools, str):
            tools = self._decoded(tools) if tools.strip() else None
        _tools(tools)

    def _prompt_completion(self, record: dict[str, Any]) -> None:
        prompt, completion = record["prompt"], record["completion"]
        if isinstance(prompt, list):
            _need(isinstance(completion, list))
            before, after = ([self._message(item) for item in part] for part in (prompt, completion))
            self._conversation([*before, *after])
            _need("assistant" in after)
            _tools(record.get("tools"))
            return
        _solid(prompt)
        _solid(completion)

    def _alpaca(self, record: dict[str, Any]) -> None:
        answers = [key for key in ("output", "response") if key in record]
        inputs = [key for key in ("input", "context") if key in record]
        _need(len(answers) == 1 and len(inputs) <= 1)
        for key in ("system", *inputs):
            _need(record.get(key) is None or isinstance(record[key], str))
        history = record.get("history")
        _need(history is None or isinstance(history, list))
        for pair in history or []:
            _need(isinstance(pair, list) and len(pair) == 2)
            for text in pair:
                _solid(text)
        _solid(record["instruction"])
        _solid(record[answers[0]])

    def _text(self, record: dict[str, Any]) -> None:
        _solid(record["text"])

    def _message(self, item: Any) -> str:
        """The role of a message that keeps the rules."""
        _need(isinstance(item, dict))
        role, calls = item.get("role"), item.get("tool_calls")
        _need(isinstance(role, str) and role in _ROLES)
        _need(bool(calls) or "content" in item)
        if calls is not None and calls != []:
            _need(role == "assistant" and isinstance(calls, list))
            for call in calls:
                self._call(call)
        content = item.get("content")
        if isinstance(content, list):
            for part in content:
                _need(isinstance(part, dict) and part.get("type") == "text")
                _need(isinstance(part.get("text"), str))
            content = "".join(part["text"] for part in content)
        _need(isinstance(content, str) or (content is None and bool(calls)))
        if role in ("user", "assistant") and not calls:
            _solid(content)
        return str(role)

    def _turn(self, item: Any) -> str:
        _need(isinstance(item, dict))
        if "from" not in item and "role" in item:
            return self._message(item)
        _need("from" in item and "value" in item)
        speaker, value = item["from"], item["value"]
        if speaker == "function_call":
            calls = self._decoded(value) if isinstance(value, str) else value
            for call in _filled_list(calls if isinstance(calls, list) else [calls]):
                self._call(call)
            return "assistant"
        _need(isinstance(speaker, str) and speaker in _SPEAKERS)
        _need(isinstance(value, str))
        role = _SPEAKERS[speaker]
        if role in ("user", "assistant"):
            _solid(value)
        return role

    def _call(self, call: Any) -> None:
        _need(isinstance(call, dict))
        function = call.get("function", call)
        _need(isinstance(function, dict))
        name, arguments = function.get("name"), function.get("arguments")
        _need(isinstance(name, str) and name != "")
        _need(not any(character in '"\\' or character < " " for character in name))
        if isinstance(arguments, str):
            arguments = self._decoded(arguments)
        _need(isinstance(arguments, dict))

    def _decoded(self, text: str) -> Any:
        """The value of a JSON text that stands in a string."""
        try:
            inner = self._json.JsonText(text.encode())
        except (self._json.NotJsonError, self._json.TooDeepError):
            raise BadRecordError from None
        _need(not inner.faults)
        return inner.value

    def _conversation(self, roles: list[str]) -> None:
        """The order of turns."""
        _need("assistant" in roles and "system" not in roles[1:])
        for before, role in zip([None, *roles], roles, strict=False):
            _need(not (role == before == "assistant"))
            _need(role != "tool" or before in ("assistant", "tool"))


def _format_of(record: dict[str, Any]) -> str | None:
    if "messages" in record:
        return "messages"
    if "conversations" in record:
        return "conversations"
    if "prompt" in record and "completion" in record:
        return "prompt_completion"
    if "instruction" in record and ("output" in record or "response" in record):
        return "alpaca"
    return "text" if "text" in record else None


def _need(condition: bool) -> None:
    if not condition:
        raise BadRecordError


def _filled_list(value: Any) -> list[Any]:
    _need(isinstance(value, list) and bool(value))
    return list(value)


def _solid(value: Any) -> None:
    """Text that is more than blanks."""
    _need(isinstance(value, str) and bool(value.strip()))


def _tools(value: Any) -> None:
    _need(value is None or isinstance(value, list))
    for tool in value or []:
        _need(isinstance(tool, dict) and bool(tool))
