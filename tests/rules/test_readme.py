"""The README has exactly two set-up commands, names every command, and `.ci/run` does what it says."""

import re
from pathlib import Path

import pytest

from nf4tui.cli_commands import COMMANDS
from nf4tui.errors import CannotRunError, InputError, TrainingFailedError


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def set_up(readme: str) -> list[str]:
    section = readme.split("## Set-up\n")[1].split("\n## ", maxsplit=1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_there_are_exactly_two_set_up_commands_one_line_each(readme: str) -> None:
    train, tests = set_up(readme)
    assert readme.count("pip install") == 2
    for line in (train, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert "nf4tui train sample_data/train.jsonl" in train and "sample_data/heldout.jsonl" in train
    assert "[dev]" in tests


def test_ci_installs_and_tests_as_the_readme_says(readme: str, root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    install, test = (part.replace(".venv/", "") for part in set_up(readme)[1].split(" && ")[1:])
    steps = [line.replace('"$venv/bin/', "bin/").replace('"', "") for line in script.splitlines()]
    assert install in steps
    assert test == steps[-1]
    assert "set -euo pipefail" in script


def test_every_command_is_in_the_table(readme: str) -> None:
    listed = set(re.findall(r"^\| `nf4tui (\w+)", readme, re.MULTILINE))
    assert listed == {command.__name__ for command in COMMANDS}


def test_the_exit_codes_are_those_of_the_errors(readme: str) -> None:
    table = readme.split("## Exit codes\n")[1].split("\n## ", maxsplit=1)[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    errors = (InputError, CannotRunError, TrainingFailedError)
    assert {error.exit_code for error in errors} <= codes


def test_every_dependency_has_a_sentence(readme: str, root: Path) -> None:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sentences = readme.split("## Dependencies\n")[1]
    names = [re.match(r"[\w-]+", line) for line in project["dependencies"]]
    names += [re.match(r"[\w-]+", line) for line in project["optional-dependencies"]["dev"]]
    missing = [name[0] for name in names if name and name[0] not in sentences]
    assert missing == []


def test_the_development_extra_has_no_cuda_parts(root: Path) -> None:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = project["dependencies"] + project["optional-dependencies"]["dev"]
    # numba-cuda without an extra brings no CUDA: its simulator needs none.
    assert not [line for line in everything if re.match(r"cuda|nvidia|torch|numba-cuda\[", line)]
