"""A second opinion on JSON text: RFC 8259 by recursive descent over bytes, with the limits of a data line.

Written from the RFC's grammar alone. It uses neither Python's json nor anything of nf4tui, so that agreement
with nf4tui's reader means something. Values: dict, list, str, float, True, False, None.

Two kinds of fault. NotJsonError: no JSON text begins like this, or it ends too early. Faults of value (a key
given twice, a lone surrogate, a number beyond a double or of more than 400 characters, NaN and Infinity, which
are no JSON but what other writers mean by it) leave the text readable, and are counted in `faults`.
"""

import math
from typing import Any

MAX_DEPTH = 100
MAX_NUMBER = 400

_WORDS: dict[bytes, Any] = {b"true": True, b"false": False, b"null": None}
_FOREIGN = (b"NaN", b"Infinity", b"-Infinity")
_ESCAPES = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x62: "\b", 0x66: "\f", 0x6E: "\n", 0x72: "\r", 0x74: "\t"}
_BLANKS = frozenset(b" \t\r\n")
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")


class NotJsonError(Exception):
    """The text is no JSON."""


class TooDeepError(Exception):
    """More than MAX_DEPTH objects and arrays are open at once."""


class JsonText:
    """One text, which must be valid UTF-8. value: what it says. faults: how many faults of value it has.
    Raises NotJsonError or TooDeepError, whichever comes first in the text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.faults = 0
        self._blanks()
        self.value = self._value(0)
        self._blanks()
        if self._at < len(data):
            raise NotJsonError

    def _peek(self) -> int:
        return self._data[self._at] if self._at < len(self._data) else -1

    def _take(self, expected: bytes) -> None:
        if not self._data.startswith(expected, self._at):
            raise NotJsonError
        self._at += len(expected)

    def _blanks(self) -> None:
        while self._peek() in _BLANKS:
            self._at += 1

    def _value(self, depth: int) -> Any:
        match self._peek():
            case 0x7B:
                return self._object(depth + 1)
            case 0x5B:
                return self._array(depth + 1)
            case 0x22:
                return self._string()
        for word, meaning in _WORDS.items():
            if self._data.startswith(word, self._at):
                self._at += len(word)
                return meaning
        for word in _FOREIGN:
            if self._data.startswith(word, self._at):
                self._at += len(word)
                self.faults += 1
                return math.inf
        return self._number()

    def _object(self, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise TooDeepError
        self._take(b"{")
        self._blanks()
        found: dict[str, Any] = {}
        if self._peek() == 0x7D:
            self._at += 1
            return found
        while True:
            key = self._string()
            self.faults += key in found
            self._blanks()
            self._take(b":")
            self._blanks()
            found[key] = self._value(depth)
            self._blanks()
            if self._peek() != 0x2C:
                self._take(b"}")
                return found
            self._at += 1
            self._blanks()

    def _array(self, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise TooDeepError
        self._take(b"[")
        self._blanks()
        found: list[Any] = []
        if self._peek() == 0x5D:
            self._at += 1
            return found
        while True:
            found.append(self._value(depth))
            self._blanks()
            if self._peek() != 0x2C:
                self._take(b"]")
                return found
            self._at += 1
            self._blanks()

    def _string(self) -> str:
        self._take(b'"')
        parts: list[str] = []
        start = self._at
        while (byte := self._peek()) != 0x22:
            if byte < 0x20:  # a control character, or the end
                raise NotJsonError
            if byte != 0x5C:
                self._at += 1
                continue
            parts += [self._data[start : self._at].decode(), self._escape()]
            start = self._at
        parts.append(self._data[start : self._at].decode())
        self._at += 1
        return "".join(parts)

    def _escape(self) -> str:
        self._at += 1
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind != 0x75:
            raise NotJsonError
        first = self._hex4()
        if 0xD800 <= first < 0xDC00 and self._data.startswith(b"\\u", self._at):
            back = self._at
            self._at += 2
            second = self._hex4()
            if 0xDC00 <= second < 0xE000:
                return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))
            self._at = back
        if 0xD800 <= first < 0xE000:
            self.faults += 1
        return chr(first)

    def _hex4(self) -> int:
        digits = self._data[self._at : self._at + 4]
        if len(digits) < 4 or not _HEX.issuperset(digits):
            raise NotJsonError
        self._at += 4
        return int(digits, 16)

    def _number(self) -> float:
        """-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?"""
        start = self._at
        if self._peek() == 0x2D:
            self._at += 1
        if self._peek() == 0x30:
            self._at += 1
        else:
            self._digits()
        if self._peek() == 0x2E:
            self._at += 1
            self._digits()
        if self._peek() in (0x45, 0x65):
            self._at += 1
            if self._peek() in (0x2B, 0x2D):
                self._at += 1
            self._digits()
        text = self._data[start : self._at]
        value = float(text)
        self.faults += len(text) > MAX_NUMBER or math.isinf(value)
        return value

    def _digits(self) -> None:
        start = self._at
        while self._peek() in _DIGITS:
            self._at += 1
        if self._at == start:
            raise NotJsonError


def utf8_fault(data: bytes) -> str | None:
    """`bad`: not UTF-8 (RFC 3629, section 4). `cut`: valid but for a last character that is not complete."""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if 0xC2 <= first <= 0xDF:
            low, high, more = 0x80, 0xBF, 1
        elif 0xE0 <= first <= 0xEF:
            low, high, more = 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF, 2
        elif 0xF0 <= first <= 0xF4:
            low, high, more = 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF, 3
        else:
            return "bad"
        tail = data[at + 1 : at + 1 + more]
        for place, byte in enumerate(tail):
            if not (low <= byte <= high if place == 0 else 0x80 <= byte <= 0xBF):
                return "bad"
        if len(tail) < more:
            return "cut"
        at += 1 + more
    return None
