"""From files to samples: token ids with their loss mask, and a report in which every record is counted.

A sample longer than the window is dropped (the default), truncated or an error, as asked. A truncated sample
ends where the window does, so the end token that it lost is not supervised. A sample with nothing supervised
is dropped and counted; a data set with nothing supervised is refused.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nf4tui.data.chat import SUPERVISE, document_segments, tokenize
from nf4tui.data.conversation import Conversation, Document, Record
from nf4tui.data.files import expand
from nf4tui.data.jsonl import BadLineError
from nf4tui.data.records import FORMATS, RecordFile
from nf4tui.data.report import DataReport, FileReport
from nf4tui.data.segments import RenderError, Segment
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError

OVERLONG = ("drop", "truncate", "error")
_AT_ONCE = 64  # records rendered together: a foreign template's child process costs a start


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """As the flags of the same names (TrainConfig)."""

    format: str = "auto"
    overlong: str = "drop"
    skip_bad: bool = False
    supervise: str = "all"
    max_seq_len: int = 2048

    def check(self) -> None:
        """Raises InputError that names the flag out of range."""
        for flag, value, allowed in (
            ("--format", self.format, ("auto", *FORMATS)),
            ("--overlong", self.overlong, OVERLONG),
            ("--supervise", self.supervise, SUPERVISE),
        ):
            if value not in allowed:
                raise InputError(f"{flag} {value}: must be one of {', '.join(allowed)}")
        if self.max_seq_len < 2:
            raise InputError(f"--max-seq-len {self.max_seq_len}: must be at least 2")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """ids: [n] int32. supervised: [n] bool; False for the first token, which nothing predicts.
    record: what it was made from; None where that was not kept (token_cache.py)."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.bool_]
    source: str
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples in the files' order, and what became of every record."""

    samples: tuple[Sample, ...]
    report: DataReport


def load_samples(
    paths: Sequence[str | Path], tokenizer: ChatTokenizer, options: DataOptions | None = None
) -> Dataset:
    """Reads JSONL files (or globs) into samples of at most max_seq_len tokens, in the files' order.

    Raises InputError: what jsonl, records and messages refuse, and a data set with nothing to learn from.
    """
    options = options or DataOptions()
    dataset = read_samples(paths, tokenizer, options)
    if not dataset.samples:
        raise InputError(nothing_left(paths, dataset.report, options))
    return dataset


def read_samples(paths: Sequence[str | Path], tokenizer: ChatTokenizer, options: DataOptions) -> Dataset:
    """As load_samples, but a data set with nothing to learn from comes back empty, with its report."""
    options.check()
    return join_files([read_file(path, tokenizer, options) for path in expand(paths)])


def read_file(path: str, tokenizer: ChatTokenizer, options: DataOptions) -> tuple[list[Sample], FileReport]:
    """The samples of one file, and its report. Raises InputError."""
    report = FileReport(path=path)
    samples: list[Sample] = []
    records = _records(path, options, report)
    while some := list(islice(records, _AT_ONCE)):
        for record, segments in zip(some, _rendered(some, tokenizer, options.supervise), strict=True):
            if isinstance(segments, RenderError):
                error = BadLineError(f"{record.source}:1: {segments}")
                if not options.skip_bad:
                    raise error
                report.bad.add(str(error))
                continue
            if _spells_control_token(segments, tokenizer):
                report.control_tokens.add(record.source)
            sample = _fit(_sample(record, segments, tokenizer), options, report)
            if sample is not None:
                samples.append(sample)
    report.samples = len(samples)
    return samples, report


def join_files(files: Sequence[tuple[list[Sample], FileReport]]) -> Dataset:
    """The data set of several files, one after another."""
    report = DataReport()
    samples: list[Sample] = []
    seen: set[bytes] = set()
    for file_samples, file_report in files:
        report.add_file(file_report)
        samples += file_samples
        for sample in file_samples:
            _count(sample, report, seen)
    return Dataset(tuple(samples), report)


def nothing_left(paths: Sequence[str | Path], report: DataReport, options: DataOptions) -> str:
    """Why a data set has no samples, in one line."""
    where = ", ".join(map(str, paths))
    if not report.records:
        return f"{where}: no records; write one JSON object a line"
    reasons = [
        f"{tally.count} {what}"
        for tally, what in (
            (report.bad, "bad"),
            (report.dropped, f"longer than --max-seq-len {options.max_seq_len}"),
            (report.unsupervised, "without a supervised token in the window"),
        )
        if tally.count
    ]
    return f"{where}: nothing to learn from: of {report.records} records, {', '.join(reasons)}"


def scan_files(paths: Sequence[str | Path], options: DataOptions) -> DataReport:
    """The files' formats and counts without a tokenizer: tokens, samples and lengths stay empty."""
    options.check()
    report = DataReport()
    for path in expand(paths):
        file = FileReport(path=path)
        for _ in _records(path, options, file):
            pass
        report.add_file(file)
    return report


def _records(path: str, options: DataOptions, report: FileReport) -> Iterator[Record]:
    """One file's records; its counts are in the report once they are exhausted."""

    def skip(error: BadLineError) -> None:
        report.bad.add(str(error))

    file = RecordFile(path, options.format, skip if options.skip_bad else None)
    yield from file
    report.format, report.records = file.format, file.records
    report.bom, report.sha256 = file.file.bom, file.file.sha256


def _rendered(
    records: Sequence[Record], tokenizer: ChatTokenizer, supervise: str
) -> list[list[Segment] | RenderError]:
    """The segments of each record. A file holds one format, so that they are of one kind."""
    conversations = [record for record in records if isinstance(record, Conversation)]
    rendered = iter(tokenizer.form.render(conversations, supervise))
    return [
        document_segments(record, tokenizer) if isinstance(record, Document) else next(rendered)
        for record in records
    ]


def _sample(record: Record, segments: Sequence[Segment], tokenizer: ChatTokenizer) -> Sample:
    tokens = tokenize(segments, tokenizer)
    tokens.supervised[:1] = False
    return Sample(tokens.ids, tokens.supervised, record.source, record)


def _fit(sample: Sample, options: DataOptions, report: FileReport) -> Sample | None:
    """The sample within the window, or None if it is dropped."""
    length, window = len(sample.ids), options.max_seq_len
    report.longest = max(report.longest, length)
    if length > window:
        if options.overlong == "error":
            raise InputError(
                f"{sample.source}:1: the record has {length} tokens, and --max-seq-len is {window};"
                " raise it, or use --overlong drop or truncate"
            )
        if options.overlong == "drop":
            report.dropped.add(f"{sample.source}: {length} tokens")
            return None
        report.truncated.add(f"{sample.source}: {length} tokens")
        # Copies, so that the uncut arrays can go.
        ids, supervised = sample.ids[:window].copy(), sample.supervised[:window].copy()
        sample = Sample(ids, supervised, sample.source, sample.record)
    if not sample.supervised.any():
        report.unsupervised.add(sample.source)
        return None
    return sample


def _count(sample: Sample, report: DataReport, seen: set[bytes]) -> None:
    key = hashlib.sha256(sample.ids.tobytes() + sample.supervised.tobytes()).digest()
    if key in seen:
        report.duplicates.add(sample.source)
    seen.add(key)
    report.samples += 1
    report.tokens += len(sample.ids)
    report.supervised_tokens += int(np.count_nonzero(sample.supervised))
    report.lengths.append(len(sample.ids))


def _spells_control_token(segments: Sequence[Segment], tokenizer: ChatTokenizer) -> bool:
    texts = [segment.text for segment in segments if not segment.control]
    return any(name in text for text in texts for name in tokenizer.control_tokens)
