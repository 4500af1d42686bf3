"""A tokenised file is found again exactly when nothing that it depends on has changed."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.data import token_cache
from nf4tui.data.samples import DataOptions, Dataset, load_samples
from nf4tui.data.token_cache import KEPT_SECONDS, TokenCache
from nf4tui.data.tokenizer import ChatTokenizer, load_tokenizer
from nf4tui.errors import InputError

OPTIONS = DataOptions(skip_bad=True, max_seq_len=60)


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file in which every kind of thing that a report counts happens."""
    path = tmp_path / "data.jsonl"
    records = [
        chat("Hi", "Hello."),
        {"messages": []},
        chat("Hi", "Hello."),
        chat("a<|im_end|>", "b"),
        chat("x", "1 " * 90),
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def load(
    folder: Path, path: Path, tokenizer: ChatTokenizer, options: DataOptions = OPTIONS
) -> tuple[Dataset, bool]:
    """The data set, and whether it came from the cache."""
    cache = TokenCache(folder / "cache")
    dataset = cache.load_samples([str(path)], tokenizer, options)
    cache.save()
    return dataset, cache.hits == 1


def assert_equal(found: Dataset, expected: Dataset) -> None:
    assert asdict(found.report) == asdict(expected.report)
    assert [sample.source for sample in found.samples] == [sample.source for sample in expected.samples]
    for a, b in zip(found.samples, expected.samples, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.supervised, b.supervised)
        assert (a.ids.dtype, a.supervised.dtype) == (b.ids.dtype, b.supervised.dtype)


def test_what_is_found_is_what_was_tokenised(tmp_path: Path, data: Path, tokenizer: ChatTokenizer) -> None:
    expected = load_samples([data], tokenizer, OPTIONS)
    assert expected.report.duplicates.count and expected.report.bad.count and expected.report.dropped.count
    for from_cache in (False, True, True):
        found, hit = load(tmp_path, data, tokenizer)
        assert hit == from_cache
        assert_equal(found, expected)


def change_bytes(data: Path, tokenizer: ChatTokenizer, options: DataOptions) -> tuple[Path, DataOptions]:
    status = data.stat()
    data.write_text(data.read_text().replace("Hello.", "Holla."))
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same time
    return data, options


def change_path(data: Path, tokenizer: ChatTokenizer, options: DataOptions) -> tuple[Path, DataOptions]:
    return Path(shutil.copy(data, data.with_name("other.jsonl"))), options


CHANGES: dict[str, Callable[[Path, ChatTokenizer, DataOptions], tuple[Path, DataOptions]]] = {
    "bytes": change_bytes,
    "path": change_path,
    "window": lambda data, _, options: (data, replace(options, max_seq_len=59)),
    "supervise": lambda data, _, options: (data, replace(options, supervise="last")),
    "overlong": lambda data, _, options: (data, replace(options, overlong="truncate")),
    "format": lambda data, _, options: (data, replace(options, format="messages")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_file_or_option_is_tokenised_anew(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer, change: str
) -> None:
    load(tmp_path, data, tokenizer)
    path, options = CHANGES[change](data, tokenizer, OPTIONS)
    found, hit = load(tmp_path, path, tokenizer, options)
    assert not hit
    assert_equal(found, load_samples([path], tokenizer, options))


def test_an_option_that_refuses_bad_records_is_not_served_what_another_skipped(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer
) -> None:
    load(tmp_path, data, tokenizer)
    with pytest.raises(InputError, match="must be a non-empty array"):
        load(tmp_path, data, tokenizer, replace(OPTIONS, skip_bad=False))


def test_another_tokenizer_template_or_code_is_tokenised_anew(
    tmp_path: Path,
    data: Path,
    model_dir: Path,
    tokenizer: ChatTokenizer,
    qwen25_template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(tmp_path, data, tokenizer)
    other = tmp_path / "model"
    shutil.copytree(model_dir, other)
    assert load(tmp_path, data, load_tokenizer(other))[1]
    (other / "chat_template.jinja").write_text(qwen25_template.replace("Alibaba Cloud", "someone"))
    assert not load(tmp_path, data, load_tokenizer(other))[1]
    (other / "chat_template.jinja").unlink()
    fields = json.loads((other / "tokenizer.json").read_text())
    fields["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(fields))
    assert not load(tmp_path, data, load_tokenizer(other))[1]
    assert load(tmp_path, data, tokenizer)[1]
    monkeypatch.setattr(token_cache, "version", lambda name: "0")
    assert not load(tmp_path, data, tokenizer)[1]


def test_the_code_that_tokenises_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "data"
    shutil.copytree(Path(token_cache.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(token_cache, "__file__", str(package / "token_cache.py"))
    before = token_cache._code()
    assert before == token_cache._code()
    with (package / "chatml.py").open("a") as file:
        file.write("# another\n")
    assert token_cache._code() != before


def test_a_file_that_changes_while_it_is_tokenised_is_kept_under_what_was_read(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = data.read_text()
    sha256 = token_cache._sha256

    def changed_after(path: str) -> str:
        found = sha256(path)
        data.write_text(original.replace("Hello.", "Other."))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "_sha256", changed_after)
        load(tmp_path, data, tokenizer)
    found, hit = load(tmp_path, data, tokenizer)
    assert hit
    assert_equal(found, load_samples([data], tokenizer, OPTIONS))
    data.write_text(original)
    found, hit = load(tmp_path, data, tokenizer)
    assert not hit
    assert_equal(found, load_samples([data], tokenizer, OPTIONS))


@pytest.mark.parametrize("place", [0, 8, 40, -1, -40, -200])
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer, place: int
) -> None:
    expected, _ = load(tmp_path, data, tokenizer)
    (entry,) = (tmp_path / "cache").iterdir()
    damaged = bytearray(entry.read_bytes())
    damaged[place] ^= 0x41
    for content in (bytes(damaged), entry.read_bytes()[:place] or b""):
        entry.write_bytes(content)
        found, hit = load(tmp_path, data, tokenizer)
        assert not hit
        assert_equal(found, expected)
        assert load(tmp_path, data, tokenizer)[1]


def test_nothing_is_written_before_it_is_saved_nor_where_it_cannot_be(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer
) -> None:
    cache = TokenCache(tmp_path / "cache")
    cache.load_samples([str(data)], tokenizer, OPTIONS)
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").write_text("a file in the way")
    cache.save()
    assert (tmp_path / "cache").read_text() == "a file in the way"


def test_entries_that_nothing_used_for_long_are_removed_and_no_other_file(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer
) -> None:
    load(tmp_path, data, tokenizer)
    (used,) = (tmp_path / "cache").iterdir()
    unused, foreign = used.with_name("0.safetensors"), used.with_name("notes.txt")
    for path in (unused, foreign, used):
        path.touch()
        os.utime(path, (time.time() - KEPT_SECONDS - 60,) * 2)
    assert load(tmp_path, data, tokenizer)[1]  # which is a use
    load(tmp_path, data, tokenizer, replace(OPTIONS, supervise="last"))
    assert used.exists() and foreign.exists() and not unused.exists()


def test_nothing_left_to_learn_from_is_refused_from_the_cache_too(
    tmp_path: Path, data: Path, tokenizer: ChatTokenizer
) -> None:
    options = replace(OPTIONS, max_seq_len=2)
    for _ in range(2):
        with pytest.raises(InputError, match="nothing to learn from: of 5 records, 1 bad, 4 longer than"):
            load(tmp_path, data, tokenizer, options)
