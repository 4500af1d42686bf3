"""The lines of a JSONL file, strictly: bytes, split at 0x0A only, UTF-8, one JSON object a line.

Accepted: a byte order mark at byte 0 (reported), CRLF, blank lines, a last line without a newline.
Refused, with `file:line:column: what; what to do`: every other encoding, by name; a line over 16 MiB; and
what strict_json refuses. A last line without a newline that cannot be read is refused as torn: the file
is probably still being written.

Faults of one line raise BadLineError, which a caller may count and step over; faults of the file raise
InputError. Memory: one line at a time.
"""

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO

from nf4tui.data import strict_json
from nf4tui.errors import InputError
from nf4tui.small_files import open_regular

MAX_LINE = 16 * 2**20

_MAGIC = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"PK\x03\x04", "ZIP"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"PAR1", "Parquet"),
)
_COMPRESSED = frozenset({"gzip", "Zstandard", "ZIP", "bzip2", "xz"})


class BadLineError(InputError):
    """One line cannot be used; the rest of the file can."""


@dataclass(frozen=True, slots=True)
class Line:
    """One non-blank line, undecoded. `ended`: a newline followed it."""

    path: str
    number: int
    data: bytes
    ended: bool

    @property
    def source(self) -> str:
        return f"{self.path}:{self.number}"

    def error(self, column: int, message: str) -> BadLineError:
        return BadLineError(f"{self.source}:{column}: {message}")


class JsonlFile:
    """Iterates over the lines of one file, once. `bom` and `sha256` describe the bytes read so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bom = False
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[Line]:
        """Raises InputError: not a readable regular file, another encoding, a line over the limit."""
        try:
            with _open(self.path) as file:
                yield from self._lines(file)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror}); check the path and its permissions"
            ) from None

    def _lines(self, file: BinaryIO) -> Iterator[Line]:
        number = 0
        while data := file.readline(MAX_LINE + 2):
            number += 1
            self._hash.update(data)
            if number == 1:
                _refuse_other_encodings(self.path, data)
                if data.startswith(codecs.BOM_UTF8):
                    self.bom = True
                    data = data[len(codecs.BOM_UTF8) :]
            ended = data.endswith(b"\n")
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            if len(data) > MAX_LINE:
                raise InputError(
                    f"{self.path}:{number}:1: a line of more than {MAX_LINE // 2**20} MiB;"
                    " split the record, and write one JSON object a line"
                )
            if data.strip(b" \t\r"):
                yield Line(self.path, number, data, ended)


def decode_line(line: Line) -> tuple[str, dict[str, Any]]:
    """The text of a line and its object. Raises BadLineError; InputError if the line is torn."""
    text = _decode_text(line)
    try:
        value = strict_json.decode(text)
    except strict_json.JsonProblemError as problem:
        if not line.ended and strict_json.is_broken(text):
            raise _torn(line, problem.column) from None
        raise line.error(problem.column, problem.message) from None
    if not isinstance(value, dict):
        found = _NAMES[type(value)]
        raise line.error(1, f"the line is {found}, not an object; write one JSON object a line")
    return text, value


_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a true or false",
    type(None): "null",
}


def _decode_text(line: Line) -> str:
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line.data[: error.start].decode("utf-8")) + 1
        if not line.ended and error.reason == "unexpected end of data":
            raise _torn(line, column) from None
        raise line.error(column, _encoding_message(line.data[error.start :])) from None
    if text.startswith("\ufeff"):
        raise line.error(
            1, "a byte order mark inside the file; remove it (was the file joined from several?)"
        )
    return text


def _encoding_message(rest: bytes) -> str:
    if rest[0] == 0xED:
        return "a UTF-16 surrogate written as UTF-8 (CESU-8); save the file as UTF-8"
    return (
        f"byte 0x{rest[0]:02X} is not UTF-8 (the line looks like Latin-1 or Windows-1252);"
        " save the file as UTF-8"
    )


def _torn(line: Line, column: int) -> InputError:
    return InputError(
        f"{line.source}:{column}: the last line is torn: it has no newline and is no whole JSON object;"
        " wait until the file is written, or remove the line"
    )


def _refuse_other_encodings(path: str, data: bytes) -> None:
    """`data`: the file's first line, or its first bytes where there is no newline."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            what = "decompress it" if name in _COMPRESSED else "save it as UTF-8 JSONL"
            raise InputError(f"{path}:1:1: the file is {name}, not UTF-8 text; {what}")
    head = data[:4]
    if len(head) == 4 and head.count(0) >= 2 and head != b"\0\0\0\0":
        name = "UTF-32" if head.count(0) == 3 else "UTF-16"
        raise InputError(f"{path}:1:1: the file is {name} without a mark, not UTF-8; save it as UTF-8")


def _open(path: str) -> BinaryIO:
    """Opens a regular file. Raises InputError, OSError."""
    try:
        return BufferedReader(open_regular(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except ValueError:
        raise InputError(f"{path!r}: not a file name; check the path") from None
