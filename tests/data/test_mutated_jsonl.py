"""Thousands of damaged files: the reader and a strict oracle that shares nothing with it agree on each.

The oracle (strict_oracle.py for JSON, strict_oracle_records.py for files and records) says which line is the
first to be refused, which one ends the reading when bad records are skipped, and how many records are good.
The files are those of mutator.py.
"""

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nf4tui import cli
from nf4tui.data.samples import DataOptions, load_samples
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError

FILES = 5000
LEAST_SHARE = 0.15  # of the files, accepted and refused


def load(name: str) -> ModuleType:
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ORACLE, RECORDS, MUTATOR = load("strict_oracle"), load("strict_oracle_records"), load("mutator")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file in memory where the system has such a place."""
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path_factory.mktemp("mutated")
    path = folder / f"nf4tui-mutated-{os.getpid()}.jsonl"
    yield path
    path.unlink(missing_ok=True)


def outcome(path: Path, tokenizer: ChatTokenizer, *, skip_bad: bool) -> tuple[int | None, int]:
    """(the refused line, 0 for the whole file, None if accepted; the records used). Every other exception
    than InputError, and every message that is not one line of text, fails the test."""
    try:
        found = load_samples([path], tokenizer, DataOptions(skip_bad=skip_bad, max_seq_len=100_000))
    except InputError as error:
        message = str(error)
        assert not re.search(r"[\x00-\x1f]", message), message
        place = re.match(rf"{re.escape(str(path))}:(\d+):\d+: .|{re.escape(str(path))}: .", message)
        assert place, message
        return int(place[1] or 0), 0
    report = found.report
    assert report.records == report.samples + report.bad.count
    return None, report.samples


HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def test_the_reader_agrees_with_the_strict_oracle(path: Path, tokenizer: ChatTokenizer) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(FILES):
        data = MUTATOR.mutated(seed)
        path.write_bytes(data)
        expected = RECORDS.judge(data, ORACLE)
        line, used = outcome(path, tokenizer, skip_bad=False)
        skipping = outcome(path, tokenizer, skip_bad=True)
        assert line == expected.line, (seed, data)
        assert skipping == (expected.skipping_line, expected.good), (seed, data)
        assert line is not None or used == expected.good
        outcomes["accepted" if line is None else "refused"] += 1
        outcomes["refused as a whole"] += line == 0
        outcomes["refused though bad records are skipped"] += skipping[0] is not None
        outcomes["saved by skipping"] += line is not None and skipping[0] is None
    assert outcomes["accepted"] >= LEAST_SHARE * FILES and outcomes["refused"] >= LEAST_SHARE * FILES, (
        outcomes
    )
    for what in ("refused though bad records are skipped", "saved by skipping"):
        assert outcomes[what] >= LEAST_SHARE * FILES, outcomes
    assert outcomes["refused as a whole"] >= 3, outcomes


def test_the_command_line_says_what_the_oracle_says_in_one_safe_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: Counter[int] = Counter()
    for seed in range(0, FILES, 20):
        data = MUTATOR.mutated(seed)
        path.write_bytes(data)
        verdict = RECORDS.judge(data, ORACLE)
        # The command counts bad records to the end; only what ends the reading comes before the first of them.
        expected = verdict.skipping_line or verdict.line
        code = cli.run(["data", str(path)])
        shown = capsys.readouterr()
        assert code == (0 if expected is None else 2), (seed, data)
        assert not HIDDEN.search(shown.out + shown.err), (seed, shown)
        if code:
            assert shown.err.startswith(f"nf4tui: error: {path}:{expected or ''}"), (seed, shown)
            assert shown.err.endswith("\n") and shown.err.count("\n") == 1
        else:
            assert shown.err == ""
        seen[code] += 1
    assert seen[0] >= 20 and seen[2] >= 20
