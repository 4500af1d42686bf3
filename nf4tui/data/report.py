"""What became of every record of the data: counts, and where each thing happened the first few times."""

import hashlib
from dataclasses import dataclass, field

LISTED = 20  # how many of each kind a report names


@dataclass(slots=True)
class Tally:
    """How often something happened, and where it did the first LISTED times."""

    count: int = 0
    sources: list[str] = field(default_factory=list)

    def add(self, source: str) -> None:
        self.count += 1
        if len(self.sources) < LISTED:
            self.sources.append(source)

    def join(self, other: "Tally") -> None:
        """Adds what `other` counted after this."""
        self.count += other.count
        self.sources += other.sources[: LISTED - len(self.sources)]


@dataclass(slots=True, kw_only=True)
class Tallies:
    """bad: the error lines of records skipped. dropped, truncated: longer than the window. unsupervised:
    nothing left to learn from. control_tokens: records whose text spells out a control token."""

    bad: Tally = field(default_factory=Tally)
    dropped: Tally = field(default_factory=Tally)
    truncated: Tally = field(default_factory=Tally)
    unsupervised: Tally = field(default_factory=Tally)
    control_tokens: Tally = field(default_factory=Tally)


@dataclass(slots=True, kw_only=True)
class FileReport(Tallies):
    """One file. format: None if no record had one. bom: a byte order mark was at its start. samples: of it.
    longest: tokens of its longest record, before any cut. sha256: of the bytes read."""

    path: str
    format: str | None = None
    records: int = 0
    bom: bool = False
    sha256: str = ""
    samples: int = 0
    longest: int = 0


@dataclass(slots=True, kw_only=True)
class DataReport(Tallies):
    """All files: records = samples + bad + overlong dropped + unsupervised.

    duplicates: samples whose tokens and mask equal an earlier one's (kept). lengths: [samples] tokens of each
    sample kept.
    """

    files: list[FileReport] = field(default_factory=list)
    records: int = 0
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    duplicates: Tally = field(default_factory=Tally)
    lengths: list[int] = field(default_factory=list)

    def add_file(self, file: FileReport) -> None:
        """Adds a file's own counts; what depends on the samples is counted by the caller."""
        self.files.append(file)
        self.records += file.records
        self.longest = max(self.longest, file.longest)
        for name in ("bad", "dropped", "truncated", "unsupervised", "control_tokens"):
            getattr(self, name).join(getattr(file, name))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the files' own, in the order given."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()
