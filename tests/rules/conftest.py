"""The repository's own files, as the rules see them."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    """Every file under version control that exists, or without Git every file but generated ones."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    else:
        made = {".git", ".venv", "build", "dist", "runs", "__pycache__"}
        found = [path for path in ROOT.rglob("*") if not made & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    return tracked_files()


@pytest.fixture(scope="session")
def sources(repository_files: list[Path]) -> dict[str, str]:
    """The program's Python sources by path from the root: nf4tui/, reference/, cuda_kernels/."""
    return {
        name: path.read_text(encoding="utf-8")
        for path in repository_files
        if (name := path.relative_to(ROOT).as_posix()).endswith(".py")
        and name.startswith(("nf4tui/", "reference/", "cuda_kernels/"))
    }
