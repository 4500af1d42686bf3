"""Where a merged model goes: a new directory, made whole beside its place and then renamed to it.

So a name that exists is a model that is complete. Whatever cannot work is refused before anything is written.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from nf4tui.data.tokenizer import ChatTokenizer

# What a tokenizer is made of; copied as it is.
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def new_directory(out: str, model: Path) -> Path:
    """The path that `out` names. Raises InputError unless a new directory can be made there, outside
    the model's own. An empty directory counts as new."""
    try:
        path = Path(out).expanduser()
        if not out or path.name in ("", ".."):
            raise InputError(f"--out {out!r}: name a new directory")
        _refuse_what_is_there(path)
        if path.resolve().is_relative_to(model.resolve()):
            raise InputError(f"{path}: lies in the model's own directory; name another one with --out")
        parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{out}: cannot be used ({error}); name another --out") from None
    if not parent.is_dir():
        what = "is a file" if parent.exists() else "is a link to nowhere"
        raise InputError(f"{parent}: {what}, so {path} cannot be made; name another --out")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{parent}: cannot be written; name another --out")
    return path


def _refuse_what_is_there(path: Path) -> None:
    if path.is_symlink():
        raise InputError(f"{path}: is a link; name a new directory with --out")
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path}: exists and is no directory; name a new one with --out")
    if any(path.iterdir()):
        raise InputError(f"{path}: is not empty; name a new directory with --out")
    if path.is_mount():  # nothing can be renamed to it
        raise InputError(f"{path}: is a mount point; name a new directory in it with --out")


def check_space(target: Path, needed: int) -> None:
    """Raises InputError unless `needed` bytes and a little fit where `target` is to be."""
    free = shutil.disk_usage(next(folder for folder in target.absolute().parents if folder.exists())).free
    if needed * 1.01 + 2**26 > free:  # the tokenizer and the file system's own need something, too
        raise InputError(
            f"{target}: the merged model takes {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free;"
            " free some, or name another --out"
        )


def text_files(model: Path, tokenizer: "ChatTokenizer") -> dict[str, bytes]:
    """What a merged model's directory holds beside config.json and weights: the tokenizer's files, the template
    that conversations were written with, and the ends in use. Raises InputError."""
    from nf4tui.data.chatml import PLAIN_TEMPLATE
    from nf4tui.models.shards import file_inside
    from nf4tui.small_files import read_json_object, read_text

    def found(name: str) -> Path | None:
        return file_inside(model, name) if os.path.lexists(model / name) else None

    files = {}
    for name in _TOKENIZER_FILES:
        if (path := found(name)) is not None:
            files[name] = read_text(path).encode()
    if not tokenizer.has_template:
        files["chat_template.jinja"] = PLAIN_TEMPLATE.encode()
    path = found("generation_config.json")
    generation = {} if path is None else read_json_object(path)
    generation["eos_token_id"] = list(tokenizer.stop_ids)
    files["generation_config.json"] = (json.dumps(generation, indent=2) + "\n").encode()
    return files


@contextlib.contextmanager
def built(target: Path) -> Iterator[Path]:
    """An empty directory to fill, which becomes `target` at the end of the block. If the block fails, or
    Ctrl-C, SIGTERM or SIGHUP ends it, nothing is left. Raises InputError where it cannot be written."""
    from nf4tui.runs import durable

    place = target.absolute()
    missing = [folder for folder in place.parents if not folder.exists()]
    temporary = place.parent / f"{durable.TEMPORARY}{os.getpid()}-{place.name}"
    try:
        with _signals_raise():
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                temporary.mkdir()
                yield temporary
                for path in (*temporary.iterdir(), temporary):
                    durable.sync(path)
                temporary.rename(place)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                for folder in missing:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                raise
        durable.sync(place.parent)
    except OSError as error:
        raise InputError(
            f"{target}: cannot be written ({error.strerror or error}); name another --out"
        ) from None


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """In the block SIGTERM and SIGHUP raise KeyboardInterrupt; after it they end the process, as they do."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for ending in received:
            os.kill(os.getpid(), ending)
