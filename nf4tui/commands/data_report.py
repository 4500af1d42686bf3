"""The report of `nf4tui data` as lines for people and as one JSON object."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nf4tui.data.batches import BatchPlan
    from nf4tui.data.overlap import Overlap
    from nf4tui.data.report import DataReport, Tally
    from nf4tui.data.samples import DataOptions
    from nf4tui.data.tokenizer import ChatTokenizer

SHOWN_SOURCES = 5
BINS = 10
BAR = 40  # characters of the longest bar


def as_json(
    report: "DataReport",
    options: "DataOptions",
    tokenizer: "ChatTokenizer | None" = None,
    plan: "BatchPlan | None" = None,
    overlap: "Overlap | None" = None,
) -> dict[str, Any]:
    """One JSON object. What needs tokens is null where there was no model to count with."""
    counted = tokenizer is not None
    return {
        "event": "data",
        "files": [
            {
                "path": file.path,
                "format": file.format,
                "records": file.records,
                "samples": file.samples if counted else None,
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
        "padding_tokens": plan.padding_per_epoch if plan else None,
        "longest": report.longest if counted else None,
        "max_seq_len": options.max_seq_len,
        "overlong": options.overlong,
        "supervise": options.supervise,
        "dropped": _tally_json(report.dropped) if counted else None,
        "truncated": _tally_json(report.truncated) if counted else None,
        "unsupervised": _tally_json(report.unsupervised) if counted else None,
        "control_tokens": _tally_json(report.control_tokens) if counted else None,
        "duplicates": _tally_json(report.duplicates) if counted else None,
        "overlap": {"samples": _tally_json(overlap.samples), "prompts": _tally_json(overlap.prompts)}
        if overlap
        else None,
        "lengths": [
            {"from": low, "to": high, "samples": count} for low, high, count in _histogram(report.lengths)
        ]
        if counted
        else None,
        "end_token": tokenizer.form.end if tokenizer else None,
        "end_token_id": tokenizer.end_token_id if tokenizer else None,
        "stop_token_ids": sorted(tokenizer.eos_token_ids) if tokenizer else None,
        "chat_style": tokenizer.form.name if tokenizer else None,
        "notes": list(tokenizer.notes) if tokenizer else None,
    }


def count_lines(report: "DataReport") -> list[str]:
    """What can be said without a tokenizer."""
    lines = []
    for file in report.files:
        bom = ", with a byte order mark" if file.bom else ""
        lines.append(f"{file.path}: {file.format or 'no format'}, {file.records:,} records{bom}")
    return [*lines, *_tally_lines(report.bad, "bad records")]


def token_lines(
    report: "DataReport", options: "DataOptions", tokenizer: "ChatTokenizer", plan: "BatchPlan | None"
) -> list[str]:
    """Samples, tokens, the ends in use, losses and the histogram of lengths."""
    share = report.supervised_tokens / report.tokens if report.tokens else 0.0
    stops = ", ".join(str(token) for token in sorted(tokenizer.eos_token_ids))
    window = f"--max-seq-len {options.max_seq_len}"
    lines = [
        f"samples      {report.samples:,} of {report.records:,} records",
        f"tokens       {report.tokens:,}, of them supervised {report.supervised_tokens:,} ({share:.1%})",
        *_padding_lines(report, plan),
        f"chat form    {tokenizer.form.name}; an answer ends with {tokenizer.form.end}"
        f" (id {tokenizer.end_token_id}), generation stops at {stops}",
        *(f"note         {note}" for note in tokenizer.notes),
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


def overlap_lines(overlap: "Overlap", file: str) -> list[str]:
    """What the validation file has in common with the training data."""
    lines = [
        *_tally_lines(overlap.samples, "validation samples are also training samples"),
        *_tally_lines(overlap.prompts, "validation samples have a training sample's prompt"),
    ]
    return lines or [f"no sample or prompt of {file} is in the training data"]


def _padding_lines(report: "DataReport", plan: "BatchPlan | None") -> list[str]:
    if plan is None:
        return []
    padding = plan.padding_per_epoch
    how = "packed" if plan.packing else "one sample a row"
    share = padding / (padding + report.tokens)
    return [f"rows         {len(plan.rows):,} {how}; padding {padding:,} tokens an epoch ({share:.1%})"]


def _tally_json(tally: "Tally") -> dict[str, Any]:
    return {"count": tally.count, "first": tally.sources}


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
