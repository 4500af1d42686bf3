"""The small files of a stranger's directory: opened only if they are regular files, read only up to a size.

A FIFO would wait for ever, a device has no end, and a name given twice in a JSON object means either value.
"""

import json
import os
import stat
from io import FileIO
from pathlib import Path
from typing import Any

from nf4tui.errors import InputError
from nf4tui.quoting import quoted

MAX_BYTES = 64 * 2**20


def open_regular(path: str | Path) -> FileIO:
    """A regular file, open for unbuffered reading. Raises OSError, or InputError if it is something else."""
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = " but a folder" if stat.S_ISDIR(mode) else ""
        raise InputError(f"{path}: not a regular file{kind}; put the file itself there")
    return FileIO(descriptor, "rb")


def read_text(path: Path) -> str:
    """The UTF-8 text of a file. Raises InputError if it cannot be read, is too large or no such text."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise InputError(f"{path}: larger than {MAX_BYTES} bytes; not a model's text file")
            return file.read(MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8; download it again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises InputError if it cannot be read, is not one or names a key twice."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise InputError(f"{path}: the name {quoted(name)} occurs twice; keep the right one")
            table[name] = value
        return table

    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON in UTF-8 ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a JSON object")
    return value
