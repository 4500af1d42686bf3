"""`nf4tui data FILE`: what is in a data file, and what training would make of it.

Without a model: formats and counts. With one: tokens, lengths, what is dropped and why, and one sample as
the model sees it, with the supervised tokens marked (in colour on a terminal, else between ⟦ and ⟧).
Bad records do not stop the count: they are listed, and then the command fails as training would.
"""

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from nf4tui.data.samples import DataOptions, DataReport, Dataset, Sample, Tally
    from nf4tui.data.tokenizer import ChatTokenizer

SHOWN_TOKENS = 1500
SHOWN_SOURCES = 5
BINS = 10
BAR = 40  # characters of the longest bar


def run(
    file: str,
    *,
    model: str | None = None,
    as_json: bool = False,
    format: str = "auto",
    overlong: str = "drop",
    skip_bad: bool = False,
    supervise: str = "all",
    max_seq_len: int = 2048,
) -> int:
    """Prints the report of `file` (or a glob). Raises InputError, after the report where there is one: the
    file cannot be read, a record is bad and skip_bad is off, or nothing is supervised."""
    from nf4tui.data.files import expand
    from nf4tui.data.samples import DataOptions, nothing_left, read_samples, scan_files
    from nf4tui.data.tokenizer import load_tokenizer

    options = DataOptions(
        format=format, overlong=overlong, skip_bad=True, supervise=supervise, max_seq_len=max_seq_len
    )
    files = expand([file])
    folder = _model_folder(files[0], model)
    if folder is None:
        report = scan_files(files, options)
        print(json.dumps(_as_json(report, options, None))) if as_json else _print_counts(report)
    else:
        tokenizer = load_tokenizer(folder)
        dataset = read_samples(files, tokenizer, options)
        report = dataset.report
        if as_json:
            print(json.dumps(_as_json(report, options, tokenizer)))
        else:
            _print_all(dataset, options, tokenizer)
    if report.bad.count and not skip_bad:
        more = f" (and {report.bad.count - 1} more)" if report.bad.count > 1 else ""
        raise InputError(report.bad.sources[0] + more)
    if not report.records or (folder is not None and not report.samples):
        raise InputError(nothing_left(files, report, options))
    return 0


def _model_folder(file: str, model: str | None) -> Path | None:
    """The model's directory: the one named, or that of the sample data the file is part of."""
    if model is not None:
        from nf4tui.models.hub import resolve_model

        return resolve_model(model)
    from nf4tui.models.default_model import sample_model_of

    return sample_model_of(file)


def _as_json(
    report: "DataReport", options: "DataOptions", tokenizer: "ChatTokenizer | None"
) -> dict[str, Any]:
    """One JSON object. Token counts are null where there was no model to count with."""
    counted = tokenizer is not None
    return {
        "event": "data",
        "files": [
            {
                "path": file.path,
                "format": file.format,
                "records": file.records,
                "byte_order_mark": file.bom,
                "sha256": file.sha256,
            }
            for file in report.files
        ],
        "fingerprint": report.fingerprint,
        "records": report.records,
        "bad": _tally_json(report.bad),
        "samples": report.samples if counted else None,
        "tokens": report.tokens if counted else None,
        "supervised_tokens": report.supervised_tokens if counted else None,
        "longest": report.longest if counted else None,
        "max_seq_len": options.max_seq_len,
        "overlong": options.overlong,
        "dropped": _tally_json(report.dropped) if counted else None,
        "truncated": _tally_json(report.truncated) if counted else None,
        "unsupervised": _tally_json(report.unsupervised) if counted else None,
        "control_tokens": _tally_json(report.control_tokens) if counted else None,
        "duplicates": _tally_json(report.duplicates) if counted else None,
        "lengths": [
            {"from": low, "to": high, "samples": count} for low, high, count in _histogram(report.lengths)
        ]
        if counted
        else None,
        "end_token_id": tokenizer.end_token_id if tokenizer else None,
        "stop_token_ids": sorted(tokenizer.eos_token_ids) if tokenizer else None,
        "chat_style": tokenizer.style.name if tokenizer else None,
    }


def _tally_json(tally: "Tally") -> dict[str, Any]:
    return {"count": tally.count, "first": tally.sources}


def _print_counts(report: "DataReport") -> None:
    _print_lines(_count_lines(report))


def _print_all(dataset: "Dataset", options: "DataOptions", tokenizer: "ChatTokenizer") -> None:
    from rich.console import Console

    report = dataset.report
    lines = [*_count_lines(report), *_token_lines(report, options, tokenizer)]
    if not dataset.samples:
        _print_lines(lines)
        return
    sample = dataset.samples[0]
    length = len(sample.ids)
    cut = f", the first {SHOWN_TOKENS} of {length} tokens" if length > SHOWN_TOKENS else ""
    _print_lines([*lines, "", f"{sample.source}, supervised tokens marked{cut}:"])
    console = Console(highlight=False, soft_wrap=True)
    console.print(sample_text(sample, tokenizer, marks=console.color_system is None or console.no_color))


def _print_lines(lines: list[str]) -> None:
    from nf4tui.sanitize import visible

    sys.stdout.write("".join(visible(line.replace("\n", "\\n")) + "\n" for line in lines))
    sys.stdout.flush()


def _count_lines(report: "DataReport") -> list[str]:
    lines = []
    for file in report.files:
        mark = ", a byte order mark at its start" if file.bom else ""
        lines.append(f"{file.path}: {file.format or 'no known format'}, {file.records} records{mark}")
    return lines + _tally_lines(report.bad, "bad records")


def _token_lines(report: "DataReport", options: "DataOptions", tokenizer: "ChatTokenizer") -> list[str]:
    share = report.supervised_tokens / report.tokens if report.tokens else 0.0
    window = f"--max-seq-len {options.max_seq_len}"
    stops = ", ".join(map(str, sorted(tokenizer.eos_token_ids)))
    lines = [
        f"samples      {report.samples:,} of {report.records:,} records",
        f"tokens       {report.tokens:,}, of them supervised {report.supervised_tokens:,} ({share:.1%})",
        f"chat form    {tokenizer.style.name}; a turn ends with id {tokenizer.end_token_id},"
        f" generation stops at {stops}",
        *_tally_lines(report.dropped, f"dropped: longer than {window}"),
        *_tally_lines(report.truncated, f"truncated: longer than {window}"),
        *_tally_lines(report.unsupervised, "dropped: nothing supervised in the window"),
        *_tally_lines(report.control_tokens, "with control tokens in their text, encoded as plain text"),
        *_tally_lines(report.duplicates, "equal to an earlier sample, kept"),
    ]
    if report.lengths:
        lines.append(f"length in tokens (the longest record: {report.longest:,})")
    most = max((count for _, _, count in _histogram(report.lengths)), default=1)
    for low, high, count in _histogram(report.lengths):
        bar = "█" * -(-count * BAR // most)
        lines.append(f"{low:>6}-{high:<6} {count:>7,} {bar}")
    return lines


def _tally_lines(tally: "Tally", what: str) -> list[str]:
    if not tally.count:
        return []
    shown = tally.sources[:SHOWN_SOURCES]
    more = [f"  and {tally.count - len(shown):,} more"] if tally.count > len(shown) else []
    return [f"{tally.count:,} {what}", *(f"  {source}" for source in shown), *more]


def _histogram(lengths: list[int]) -> list[tuple[int, int, int]]:
    """(from, to, samples) of at most BINS equal bins, both ends included."""
    if not lengths:
        return []
    width = -(-max(lengths) // BINS)
    counts = [0] * (-(-max(lengths) // width))
    for length in lengths:
        counts[(length - 1) // width] += 1
    return [(index * width + 1, (index + 1) * width, count) for index, count in enumerate(counts)]


def sample_text(sample: "Sample", tokenizer: "ChatTokenizer", *, marks: bool) -> "Text":
    """The sample's tokens as text, the supervised ones in colour, or between marks."""
    from rich.text import Text

    from nf4tui.sanitize import visible

    text = Text()
    for supervised, piece in _pieces(sample, tokenizer):
        shown = visible(piece)
        if not supervised:
            text.append(shown, style="dim")
        elif marks:
            text.append(f"⟦{shown}⟧")
        else:
            text.append(shown, style="bold green")
    return text


def _pieces(sample: "Sample", tokenizer: "ChatTokenizer") -> "Iterator[tuple[bool, str]]":
    """(supervised, text) of each run of tokens."""
    pairs = zip(sample.supervised[:SHOWN_TOKENS].tolist(), sample.ids[:SHOWN_TOKENS].tolist(), strict=True)
    for supervised, run_of in groupby(pairs, key=lambda pair: pair[0]):
        yield supervised, tokenizer.decode([token for _, token in run_of])
