"""The command line starts fast, whatever folder it stands in, installed in either way."""

import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "numba", "textual", "tokenizers", "safetensors", "huggingface_hub", "jinja2")

LISTING = f"""
import sys
from nf4tui import cli
code = cli.run(sys.argv[1:])
print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["eval", "--help"], ["--version"], []]
)
def test_help_imports_nothing_heavy(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", LISTING, *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "\n")
    assert found.stdout.strip()


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder with modules named as parts of nf4tui; importing one fails."""
    for name in ("reference", "cuda_kernels", "sample_data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the decoy {name}')\n")
    return tmp_path


def test_decoy_folders_are_not_imported(decoys: Path, run: Run, data: Path, sample_model: Path) -> None:
    found = run("eval", data, "--model", sample_model, "--max-samples", "1")
    assert (found.returncode, found.stderr) == (0, "")
    assert run("doctor").returncode == 0


def test_an_interrupt_is_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nf4tui import cli

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("nf4tui.commands.doctor.run", interrupted)
    assert cli.run(["doctor"]) == 130
    assert capsys.readouterr().err == "nf4tui: error: interrupted\n"


@pytest.mark.parametrize(
    ("error", "arguments", "code", "message"),
    [
        (MemoryError(), ["doctor"], 3, "out of memory"),
        (
            ZeroDivisionError("a\nb"),
            ["doctor"],
            1,
            "a bug in nf4tui (ZeroDivisionError: a b); please report it with ",
        ),
        (ZeroDivisionError("a"), ["train", "x.jsonl"], 4, "a bug in nf4tui (ZeroDivisionError: a)"),
    ],
)
def test_what_nobody_expected_is_one_line_with_a_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    import tempfile

    from nf4tui import cli

    def broken(*positional: Any, **keywords: Any) -> Any:
        raise error

    monkeypatch.setattr("nf4tui.commands.doctor.run", broken)
    monkeypatch.setattr("nf4tui.commands.train.run_flags", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.run(arguments) == code
    line = capsys.readouterr().err
    assert line.startswith(f"nf4tui: error: {message}") and line.count("\n") == 1
    reports = list(tmp_path.glob("nf4tui-crash-*.txt"))
    assert len(reports) == (0 if isinstance(error, MemoryError) else 1)
    for report in reports:
        assert str(report) in line and "Traceback" in report.read_text()


@pytest.mark.slow
def test_a_wheel_holds_every_file_once_and_works_beside_decoys(
    tmp_path: Path, decoys: Path, environment: dict[str, str], data: Path, sample_model: Path
) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    # From a copy: building writes into the source folder.
    source = tmp_path / "source"
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "ls-files",
            "-z",
            "nf4tui",
            "reference",
            "cuda_kernels",
            "*.toml",
            "*.md",
            "LICENSE",
        ],
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source], check=True)
    (wheel,) = wheels.glob("nf4tui-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        contents = Counter(
            archive.read(name) for name in names if name.endswith(".py") and archive.read(name)
        )
    assert max(Counter(names).values()) == 1 and max(contents.values()) == 1
    python = {name for name in names if name.endswith(".py")}
    expected = {
        path.relative_to(ROOT).as_posix()
        if part == "nf4tui"
        else f"nf4tui/{path.relative_to(ROOT).as_posix()}"
        for part in ("nf4tui", "reference", "cuda_kernels")
        for path in (source / part).rglob("*.py")
        for path in [ROOT / path.relative_to(source)]
    }
    assert python == expected
    assert {"nf4tui/py.typed", "nf4tui/reference/engine.py"} <= set(names)

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "pip", "--quiet", "install", wheel], check=True)
    command = [venv / "bin" / "python", "-m", "nf4tui", "eval", data, "--model", sample_model]
    found = subprocess.run(command, cwd=decoys, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
