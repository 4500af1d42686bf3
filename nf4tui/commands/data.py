"""`nf4tui data FILE...`: what is in data files, and what training would make of them.

Without a model: formats and counts. With one: tokens, lengths, what is dropped and why, and one sample as
the model sees it, with the supervised tokens marked (in colour on a terminal, else between ⟦ and ⟧).
Bad records do not stop the count: they are listed, and then the command fails as training would.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from nf4tui.data.report import DataReport
    from nf4tui.data.samples import DataOptions, Sample
    from nf4tui.data.tokenizer import ChatTokenizer

SHOWN_TOKENS = 1500


def run(
    paths: Sequence[str],
    *,
    options: "DataOptions",
    model: str | None = None,
    eval_data: str | None = None,
    batch_size: int = 4,
    packing: bool = True,
    as_json: bool = False,
) -> int:
    """Prints the report of the files (or globs). Raises InputError, after the report where there is one: a
    file cannot be read, a record is bad and options.skip_bad is off, or nothing is supervised."""
    from dataclasses import replace

    from nf4tui.data.files import expand
    from nf4tui.data.samples import nothing_left

    if not paths:
        raise InputError("no data: name at least one JSONL file, as in `nf4tui data data.jsonl`")
    if batch_size < 1:
        raise InputError(f"--batch-size {batch_size}: must be at least 1")
    listing = replace(options, skip_bad=True)
    files = expand(paths)
    folder = _model_folder(files[0], model)
    if folder is None:
        if eval_data is not None:
            raise InputError("--eval-data: needs --model, since samples are compared by their tokens")
        from nf4tui.commands import data_report
        from nf4tui.data.samples import scan_files

        report = scan_files(files, listing)
        if as_json:
            print(json.dumps(data_report.as_json(report, listing)))
        else:
            _print_lines(data_report.count_lines(report))
    else:
        report = _report_tokens(files, listing, folder, eval_data, batch_size, packing, as_json)
    if report.bad.count and not options.skip_bad:
        more = f" (and {report.bad.count - 1} more)" if report.bad.count > 1 else ""
        raise InputError(report.bad.sources[0] + more)
    if not report.records or (folder is not None and not report.samples):
        raise InputError(nothing_left(files, report, options))
    return 0


def _report_tokens(
    files: list[str],
    options: "DataOptions",
    folder: Path,
    eval_data: str | None,
    batch_size: int,
    packing: bool,
    as_json: bool,
) -> "DataReport":
    """Prints all that a tokenizer can say; returns the report."""
    from nf4tui.commands import data_report
    from nf4tui.data.batches import BatchPlan
    from nf4tui.data.overlap import find_overlap
    from nf4tui.data.samples import load_samples, read_samples
    from nf4tui.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    dataset = read_samples(files, tokenizer, options)
    report = dataset.report
    plan = overlap = None
    if dataset.samples:
        plan = BatchPlan(
            dataset.samples,
            batch_size=batch_size,
            grad_accum=1,
            seq_len=options.max_seq_len,
            packing=packing,
            seed=0,
        )
    if eval_data is not None:
        overlap = find_overlap(dataset.samples, load_samples([eval_data], tokenizer, options).samples)
    if as_json:
        print(json.dumps(data_report.as_json(report, options, tokenizer, plan, overlap)))
        return report
    lines = [*data_report.count_lines(report), *data_report.token_lines(report, options, tokenizer, plan)]
    if overlap is not None:
        lines += data_report.overlap_lines(overlap, str(eval_data))
    _print_lines(lines)
    if dataset.samples:
        _print_sample(dataset.samples[0], tokenizer)
    return report


def _model_folder(file: str, model: str | None) -> Path | None:
    """The model's directory: the one named, or that of the sample data the file is part of."""
    if model is not None:
        from nf4tui.models.hub import resolve_model

        return resolve_model(model)
    from nf4tui.models.default_model import sample_model_of

    return sample_model_of(file)


def _print_sample(sample: "Sample", tokenizer: "ChatTokenizer") -> None:
    from rich.console import Console

    length = len(sample.ids)
    cut = f", the first {SHOWN_TOKENS} of {length} tokens" if length > SHOWN_TOKENS else ""
    _print_lines(["", f"{sample.source}, supervised tokens marked{cut}:"])
    console = Console(highlight=False, soft_wrap=True)
    console.print(sample_text(sample, tokenizer, marks=console.color_system is None or console.no_color))


def _print_lines(lines: list[str]) -> None:
    from nf4tui.sanitize import visible

    sys.stdout.write("".join(visible(line.replace("\n", "\\n")) + "\n" for line in lines))


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
