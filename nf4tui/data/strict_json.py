"""JSON as RFC 8259 means it, one text at a time, with the column of whatever is wrong.

Python's json accepts NaN, Infinity, 1e999, lone surrogates and duplicate keys (it keeps the last), and
its errors about values carry no position. So the C decoder does the work with hooks that refuse those,
and only when something is wrong does a small tokeniser walk the text to say where.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 100
MAX_NUMBER = 400  # characters; the largest double written out has 309 digits
_ALWAYS_FINITE = 308  # characters of an integer: fewer than 10^308, which a double holds

# Possessive, so that a string without an end costs one pass and no stack.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_TOKEN = re.compile(
    rf'[ \t\n\r]*+(?:(?P<string>{_STRING}")|(?P<mark>[{{}}\[\],:])|(?P<scalar>[^\s{{}}\[\],:"]++))', re.DOTALL
)
_STRINGS = re.compile(rf'{_STRING}(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = re.compile(r"[{}\[\]]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

Path = tuple[str | int, ...]


class JsonProblemError(ValueError):
    """What is wrong with a text and in which column (1-based, in characters)."""

    def __init__(self, column: int, message: str) -> None:
        super().__init__(message)
        self.column = column
        self.message = message


class _RefusedError(ValueError):
    """Raised by the decoder's hooks, which do not know where they are."""


def decode(text: str) -> Any:
    """The value of `text`. Raises JsonProblemError."""
    if _deeper_than_allowed(text):
        _refuse(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonProblemError(error.pos + 1, _syntax_message(error, text)) from None
    except _RefusedError as refused:
        _refuse(text)
        raise JsonProblemError(1, str(refused)) from None
    if _SURROGATE_ESCAPE.search(text):
        _refuse(text)
    return value


def is_broken(text: str) -> bool:
    """Whether `text` fails JSON's grammar, as when it is cut short, whatever is wrong with its values (a key
    twice, NaN). Of a text that nests too deep only the part up to there is looked at."""
    end = _first_too_deep(text) if _deeper_than_allowed(text) else None
    try:
        _GRAMMAR.decode(text if end is None else f"{text[:end]}null")
    except json.JSONDecodeError as error:
        return end is None or error.pos <= end
    return False


def column_of(text: str, path: Path) -> int:
    """The column at which the value at `path` starts in a valid `text`; a missing one: its container's."""
    best, depth = 1, 0
    for token in _walk(text):
        shared = token.path == path[: len(token.path)]
        if shared and token.kind != "key" and len(token.path) >= depth:
            best, depth = token.column, len(token.path)
            if depth == len(path):
                return best
    return best


def _deeper_than_allowed(text: str) -> bool:
    """Whether brackets outside strings nest too deep, told before the recursive decoder sees them."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for mark in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if mark in "{[" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _first_too_deep(text: str) -> int | None:
    """Where the first bracket stands that nests too deep; None if what stands before it cannot be read."""
    opened = (token for token in _walk(text) if token.kind == "open")
    return next((token.column - 1 for token in opened if len(token.path) >= MAX_DEPTH), None)


def _syntax_message(error: json.JSONDecodeError, text: str) -> str:
    if error.msg == "Extra data":
        return "more than one JSON value on the line; write one JSON object a line"
    if error.pos >= len(text.rstrip(" \t\r\n")):
        return "the JSON object is not complete; write one whole JSON object a line"
    if text.startswith("\ufeff", error.pos):
        return "a byte order mark inside the file; remove it (was the file joined from several?)"
    return f"not valid JSON ({error.msg}); write one JSON object a line"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _RefusedError("a key is given twice in one object")
    return result


def _constant(name: str) -> Any:
    raise _RefusedError(f"{name} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > _ALWAYS_FINITE:
        _float(digits)  # refuses what no double holds
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER or not math.isfinite(value := float(digits)):
        raise _RefusedError("a number is too large")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
)
_GRAMMAR = json.JSONDecoder(parse_constant=str, parse_int=str, parse_float=str)


@dataclass(slots=True)
class _Frame:
    """An open container: `place` is the key or index of the value being read in it."""

    is_object: bool
    place: str | int
    at_key: bool
    keys: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # key | repeated key | string | scalar | open
    column: int
    path: Path
    raw: str


def _walk(text: str) -> Iterator[_Token]:
    """Keys and values in order, as far as the text can be read."""
    stack: list[_Frame] = []
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        kind = match.lastgroup or ""
        raw = match.group(kind)
        column = match.start(kind) + 1
        path = tuple(frame.place for frame in stack)
        top = stack[-1] if stack else None
        if kind == "string" and top and top.is_object and top.at_key:
            try:
                key = json.loads(raw)
            except json.JSONDecodeError:
                return
            yield _Token("repeated key" if key in top.keys else "key", column, path, raw)
            top.keys.add(key)
            top.place = key
        elif kind != "mark":
            yield _Token(kind, column, path, raw)
        elif raw in "{[":
            yield _Token("open", column, path, raw)
            stack.append(_Frame(raw == "{", "" if raw == "{" else 0, raw == "{"))
        elif top is None:
            return
        elif raw in "}]":
            stack.pop()
        elif raw == ":":
            top.at_key = False
        elif top.is_object:
            top.at_key = True
        else:
            top.place = int(top.place) + 1


def _refuse(text: str) -> None:
    """Raises JsonProblemError for the first thing in `text` that strict JSON does not allow, if any."""
    for token in _walk(text):
        problem = _problem(token)
        if problem:
            raise JsonProblemError(token.column, problem)


def _problem(token: _Token) -> str | None:
    if token.kind == "open":
        deep = len(token.path) >= MAX_DEPTH
        return f"nested deeper than {MAX_DEPTH} levels; flatten the record" if deep else None
    if token.kind == "repeated key":
        return f"the key {token.raw} is given twice in one object; keep one"
    if token.kind == "scalar":
        return _number_problem(token.raw)
    try:
        json.loads(token.raw).encode("utf-8")
    except json.JSONDecodeError:
        return None
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        return f"a lone surrogate \\u{code:04x} is not a character; write the whole pair or remove it"
    return None


def _number_problem(raw: str) -> str | None:
    if raw in {"NaN", "Infinity", "-Infinity"}:
        return f"{raw} is not JSON; write a number or null"
    if len(raw) > MAX_NUMBER:
        return f"a number of {len(raw)} characters; the limit is {MAX_NUMBER}: write it as a string"
    try:
        finite = math.isfinite(float(raw))
    except ValueError:
        return None
    shown = raw if len(raw) <= 40 else f"{raw[:37]}..."
    return None if finite else f"the number {shown} is too large for a double; write it as a string"
