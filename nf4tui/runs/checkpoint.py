"""Checkpoints as verified folders: checkpoints/step-000050, with a manifest over everything in it.

Written under a temporary name, every file fsynced, hashed into MANIFEST.json (SHA-256 and size), the folder
renamed and its parent fsynced. So a name `step-*` is a whole checkpoint, unless the disk lost it since; that
is what verifying finds out. What a checkpoint holds is training/snapshot.py's affair.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from nf4tui.errors import InputError
from nf4tui.runs import durable

MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-(\d{6,})")


def path_of(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints / f"step-{step:06d}"


def write(checkpoints: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Makes the checkpoint of `step` from the files that `fill` writes into the folder it is given.

    One that is there already is replaced: resuming passed over it, so it does not verify.
    """
    final = path_of(checkpoints, step)
    temporary = checkpoints / f"{durable.TEMPORARY}{final.name}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    fill(temporary)
    files = {}
    for path in sorted(temporary.iterdir()):
        durable.sync(path)
        files[path.name] = {"sha256": durable.sha256(path), "size": path.stat().st_size}
    durable.write_file(temporary / MANIFEST, json.dumps({"files": files}, indent=2).encode() + b"\n")
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    durable.sync(checkpoints)
    return final


def check(path: Path) -> None:
    """Raises InputError that names the file at fault unless everything is as the manifest says."""
    manifest = path / MANIFEST
    try:
        files = json.loads(manifest.read_bytes())["files"]
        expected = {name: (entry["sha256"], entry["size"]) for name, entry in files.items()}
    except FileNotFoundError:
        raise InputError(f"{manifest}: is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{manifest}: cannot be read as a manifest") from None
    for name, (digest, size) in expected.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise InputError(f"{file}: is missing")
        if file.stat().st_size != size or durable.sha256(file) != digest:
            raise InputError(f"{file}: is not what {MANIFEST} says (size or SHA-256 differs)")
    extra = sorted({file.name for file in path.iterdir()} - expected.keys() - {MANIFEST})
    if extra:
        raise InputError(f"{path / extra[0]}: is not in {MANIFEST}")


def steps(checkpoints: Path) -> list[int]:
    """The steps with a checkpoint, newest first. Other names in the folder are not ours."""
    if not checkpoints.is_dir():
        return []
    names = [_NAME.fullmatch(path.name) for path in checkpoints.iterdir()]
    return sorted((int(name[1]) for name in names if name), reverse=True)


def prune(checkpoints: Path, *, keep: int, best_of: Callable[[Path], int | None]) -> None:
    """Removes all but the `keep` newest checkpoints, and those that they name as the best (`best_of`)."""
    newest = steps(checkpoints)[:keep]
    kept = {*newest, *(best_of(path_of(checkpoints, step)) for step in newest)}
    for step in steps(checkpoints):
        if step not in kept:
            # Renamed first: a removal that dies half-way must not leave a broken `step-*` behind.
            path = path_of(checkpoints, step)
            doomed = checkpoints / f"{durable.TEMPORARY}{path.name}"
            path.rename(doomed)
            shutil.rmtree(doomed)
