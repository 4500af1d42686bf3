"""Tokenised files, kept between runs.

An entry is found by a hash of everything that it is a function of: the file's bytes and its path (which error
lines and sample names quote), the tokenizer, the chat form, the options, the code of this package and the
versions of the libraries that render and tokenise. So it is never stale; what changes leads to another entry.
What is written was hashed while it was tokenised, so a file that changes in between is no danger either.

An entry that is damaged or cannot be read is made again. Entries not used for a month are removed. Nothing is
written before `save`: a run that is refused leaves nothing.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nf4tui.data.files import expand
from nf4tui.data.jsonl import JsonlFile
from nf4tui.data.report import FileReport, Tally
from nf4tui.data.samples import DataOptions, Dataset, Sample, join_files, nothing_left, read_file
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError

KEPT_SECONDS = 30 * 86400
_TALLIES = ("bad", "dropped", "truncated", "unsupervised", "control_tokens")


class TokenCache:
    """The entries in `folder`, which is made when the first is written. hits: files found there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsaved: list[tuple[Path, list[Sample], FileReport]] = []
        self.hits = 0

    def load_samples(self, paths: Sequence[str], tokenizer: ChatTokenizer, options: DataOptions) -> Dataset:
        """As samples.load_samples, but no sample has its record."""
        options.check()
        dataset = join_files([self._file(path, tokenizer, options) for path in expand(paths)])
        if not dataset.samples:
            raise InputError(nothing_left(paths, dataset.report, options))
        return dataset

    def _file(
        self, path: str, tokenizer: ChatTokenizer, options: DataOptions
    ) -> tuple[list[Sample], FileReport]:
        entry = self._entry(path, _sha256(path), tokenizer, options)
        found = _read(entry)
        if found is not None:
            self.hits += 1
            return found
        samples, report = read_file(path, tokenizer, options)
        samples = [Sample(sample.ids, sample.supervised, sample.source) for sample in samples]
        # The hash of the bytes that were tokenised, whatever the file held a moment ago.
        self._unsaved.append((self._entry(path, report.sha256, tokenizer, options), samples, report))
        return samples, report

    def save(self) -> None:
        """Writes what was tokenised."""
        for entry, samples, report in self._unsaved:
            self._write(entry, samples, report)
        self._unsaved.clear()

    def _entry(self, path: str, sha256: str, tokenizer: ChatTokenizer, options: DataOptions) -> Path:
        parts = [path, sha256, tokenizer.identity, json.dumps(asdict(options), sort_keys=True), _code()]
        return self._folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.safetensors"

    def _write(self, entry: Path, samples: list[Sample], report: FileReport) -> None:
        """Best effort: a run does not fail because its cache cannot be written."""
        data = _encoded(samples, report)
        temporary = entry.with_name(f"{entry.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_old()
            try:
                temporary.write_bytes(data)
                temporary.replace(entry)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError:
            return

    def _remove_old(self) -> None:
        limit = time.time() - KEPT_SECONDS
        for path in self._folder.glob("*.safetensors*"):
            if path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)


def _code() -> str:
    """What turns bytes into tokens here: this package's sources and the libraries under it."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return " ".join([digest.hexdigest(), *(version(name) for name in ("tokenizers", "jinja2", "numpy"))])


def _sha256(path: str) -> str:
    """Of a data file's bytes. Raises InputError as reading its lines does."""
    file = JsonlFile(path)
    for _ in file:
        pass
    return file.sha256


def _encoded(samples: list[Sample], report: FileReport) -> bytes:
    arrays: dict[str, Any] = {
        "lines": np.array([int(sample.source.rpartition(":")[2]) for sample in samples], np.int64),
        "lengths": np.array([len(sample.ids) for sample in samples], np.int64),
        "ids": np.concatenate([np.zeros(0, np.int32), *(sample.ids for sample in samples)]),
        "supervised": np.concatenate([np.zeros(0, np.bool_), *(sample.supervised for sample in samples)]),
    }
    text = json.dumps(asdict(report))
    digest = _digest(arrays, text)
    return save(arrays, metadata={"text": text, "sha256": digest})


def _digest(arrays: dict[str, Any], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _read(entry: Path) -> tuple[list[Sample], FileReport] | None:
    """What an entry holds; None if there is none that is whole."""
    try:
        with safe_open(entry, "np") as file:
            arrays = {name: file.get_tensor(name) for name in ("lines", "lengths", "ids", "supervised")}
            metadata = file.metadata()
        text = metadata["text"]
        if metadata["sha256"] != _digest(arrays, text):
            return None
        entry.touch()
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
    fields = json.loads(text)
    report = FileReport(**{**fields, **{name: Tally(**fields[name]) for name in _TALLIES}})
    samples = []
    end = 0
    for line, length in zip(arrays["lines"].tolist(), arrays["lengths"].tolist(), strict=True):
        start, end = end, end + length
        ids, supervised = arrays["ids"][start:end], arrays["supervised"][start:end]
        samples.append(Sample(ids, supervised, f"{report.path}:{line}"))
    return samples, report
