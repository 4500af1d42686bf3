"""The import contracts of pyproject.toml hold, and would see a broken one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BREAKING = [
    ("nf4tui/errors.py", "import nf4tui.data.jsonl"),
    ("nf4tui/data/batches.py", "from nf4tui.runs import events"),
    ("nf4tui/runs/status.py", "def later():\n    from nf4tui.training import loop"),
    ("reference/rope.py", "import nf4tui.data.jsonl"),
    ("nf4tui/training/loop.py", "import textual"),
    ("nf4tui/dashboard/__init__.py", "import nf4tui.reference.rope"),
    ("nf4tui/training/loop.py", "import nf4tui.commands.train"),
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(cache_dir=None))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def copy(tmp_path: Path, root: Path) -> Path:
    """A copy of the packages, with the links between them."""
    for name in ("nf4tui", "reference", "cuda_kernels"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(root / name, tmp_path / name, symlinks=True, ignore=ignored)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    found = lint(copy)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(("file", "line"), BREAKING)
def test_a_broken_import_is_seen(copy: Path, file: str, line: str) -> None:
    with (copy / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    found = lint(copy)
    assert found.returncode == 1 and "BROKEN" in found.stdout
