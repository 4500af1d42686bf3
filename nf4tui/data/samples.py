"""From files to samples: token ids with their loss mask, and a report in which every record is counted.

A sample longer than the window is dropped (the default), truncated or an error, as asked. A truncated sample
ends where the window does, so the end token that it lost is not supervised. A sample with nothing supervised
is dropped and counted; a data set with nothing supervised is refused.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nf4tui.data.chat import SUPERVISE, Segment, render, tokenize
from nf4tui.data.conversation import Conversation
from nf4tui.data.files import expand
from nf4tui.data.jsonl import BadLineError
from nf4tui.data.records import RecordFile
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError

OVERLONG = ("drop", "truncate", "error")
LISTED = 20  # how many of each kind a report names


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """As the flags of the same names (TrainConfig)."""

    format: str = "auto"
    overlong: str = "drop"
    skip_bad: bool = False
    supervise: str = "all"
    max_seq_len: int = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """ids: [n] int32. supervised: [n] bool; False for the first token, which opens a turn."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.bool_]
    source: str
    conversation: Conversation


@dataclass(slots=True)
class Tally:
    """How often something happened, and where it did the first LISTED times."""

    count: int = 0
    sources: list[str] = field(default_factory=list)

    def add(self, source: str) -> None:
        self.count += 1
        if len(self.sources) < LISTED:
            self.sources.append(source)


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file. format: None if no record had one. bom: a byte order mark was at its start."""

    path: str
    format: str | None
    records: int
    bom: bool
    sha256: str


@dataclass(slots=True)
class DataReport:
    """What became of every record: records = samples + bad + overlong dropped + unsupervised.

    bad: the error lines of records skipped. dropped, truncated: longer than the window. unsupervised:
    nothing left to learn from. control_tokens: records whose text spells out a control token.
    duplicates: samples whose tokens and mask equal an earlier one's (kept). lengths: [samples] tokens
    of each sample kept. longest: tokens of the longest record, before any cut.
    """

    files: list[FileReport] = field(default_factory=list)
    records: int = 0
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    bad: Tally = field(default_factory=Tally)
    dropped: Tally = field(default_factory=Tally)
    truncated: Tally = field(default_factory=Tally)
    unsupervised: Tally = field(default_factory=Tally)
    control_tokens: Tally = field(default_factory=Tally)
    duplicates: Tally = field(default_factory=Tally)
    lengths: list[int] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the files' own, in the order given."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


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
    _check(options)
    report = DataReport()
    samples: list[Sample] = []
    seen: set[bytes] = set()
    for path in expand(paths):
        for conversation in _conversations(path, options, report):
            segments = render(conversation, tokenizer.style, options.supervise)
            if _spells_control_token(segments, tokenizer):
                report.control_tokens.add(conversation.source)
            sample = _fit(_sample(conversation, segments, tokenizer), options, report)
            if sample is not None:
                _count(sample, report, seen)
                samples.append(sample)
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
    _check(options)
    report = DataReport()
    for path in expand(paths):
        for _ in _conversations(path, options, report):
            pass
    return report


def _check(options: DataOptions) -> None:
    for flag, value, allowed in (
        ("--overlong", options.overlong, OVERLONG),
        ("--supervise", options.supervise, SUPERVISE),
    ):
        if value not in allowed:
            raise InputError(f"{flag} {value}: must be one of {', '.join(allowed)}")
    if options.max_seq_len < 2:
        raise InputError(f"--max-seq-len {options.max_seq_len}: must be at least 2")


def _conversations(path: str, options: DataOptions, report: DataReport) -> Iterator[Conversation]:
    """One file's conversations; its counts are in the report once they are exhausted."""

    def skip(error: BadLineError) -> None:
        report.bad.add(str(error))

    file = RecordFile(path, options.format, skip if options.skip_bad else None)
    yield from file
    report.records += file.records
    report.files.append(FileReport(path, file.format, file.records, file.file.bom, file.file.sha256))


def _sample(conversation: Conversation, segments: Sequence[Segment], tokenizer: ChatTokenizer) -> Sample:
    tokens = tokenize(segments, tokenizer)
    return Sample(tokens.ids, tokens.supervised, conversation.source, conversation)


def _fit(sample: Sample, options: DataOptions, report: DataReport) -> Sample | None:
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
        sample = Sample(ids, supervised, sample.source, sample.conversation)
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
