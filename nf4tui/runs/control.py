"""The way back from a viewer to the trainer: words, dropped as files into RUN/control/.

A word appears by rename and is taken by unlink, so it is seen once and whole. There is no socket: a path of
any length works, and nothing is lost when either side dies and comes back.
"""

import os
import time
from pathlib import Path
from typing import Literal, get_args

from nf4tui.errors import InputError

Word = Literal["pause", "resume", "checkpoint", "stop"]
WORDS: tuple[Word, ...] = get_args(Word)


def send(control: Path, word: Word) -> None:
    """Drops a word for the trainer. Raises InputError where the folder cannot be written."""
    name = f"{time.time_ns():020d}-{os.getpid()}-{word}"
    temporary = control / f".{name}"
    try:
        temporary.write_bytes(b"")
        temporary.rename(control / name)
    except OSError as error:
        raise InputError(f"{control}: cannot send {word!r} ({error.strerror})") from None


def take(control: Path) -> list[Word]:
    """The words sent since the last call, oldest first. Files of any other name are left alone."""
    words: list[Word] = []
    try:
        names = sorted(entry.name for entry in os.scandir(control) if not entry.name.startswith("."))
    except FileNotFoundError:
        return words
    for name in names:
        sent = name.rpartition("-")[2]
        word = next((word for word in WORDS if word == sent), None)
        if word is not None:
            (control / name).unlink(missing_ok=True)
            words.append(word)
    return words
