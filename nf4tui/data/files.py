"""Which files a command line's DATA names: paths as they are, or globs."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from nf4tui.errors import InputError


def expand(paths: Sequence[str | Path]) -> list[str]:
    """The files, globs replaced by their matches in sorted order (`**` goes into folders). A name that
    exists is never read as a glob. Raises InputError: nothing matches, or a file is named twice."""
    files: list[str] = []
    for path in (os.fspath(path) for path in paths):
        if not glob.has_magic(path) or os.path.lexists(path):
            files.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 (the pattern may be absolute)
        if not matches:
            raise InputError(f"{path}: matches no file; check the path")
        files += matches
    if not files:
        raise InputError("no data file was named")
    seen: dict[str, str] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in seen:
            raise InputError(f"{file}: is the same file as {seen[real]}; name each file once")
        seen[real] = file
    return files
