"""Files that are on disk whole or not at all, whenever the process or the machine dies.

A file is written under a temporary name in its own folder, fsynced and renamed; then the folder is fsynced,
which makes the rename itself last (rename(2), fsync(2)). A killed write leaves a `.nf4tui-tmp-*` name behind.
"""

import hashlib
import os
import shutil
from pathlib import Path

TEMPORARY = ".nf4tui-tmp-"
_BLOCK = 1 << 20


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces `path` by a file that holds `data`. Not durable: atomic for readers, but not fsynced."""
    temporary = path.parent / f"{TEMPORARY}{path.name}"
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def remove_temporaries(folder: Path) -> None:
    """Removes what killed writes left in `folder`. Only for who holds the run's lock."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
