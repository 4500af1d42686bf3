"""`nf4tui merge`: a base and its adapter as one model directory, and how far it is from what was trained."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from nf4tui.errors import InputError
from nf4tui.user_path import user_path

if TYPE_CHECKING:
    from nf4tui.data.tokenizer import ChatTokenizer
    from nf4tui.engine import Batch
    from nf4tui.models.merge import Merge
    from nf4tui.parity.merged import Measured, Probe

INTO = ("dequantised", "original")


def run(
    *,
    model: str | None,
    adapter: str | None,
    out: str | None,
    into: str = "dequantised",
    quantise: bool = False,
    data: str | None = None,
    as_json: bool = False,
) -> int:
    """Writes the merged model to `out` and prints its loss and logits against the trained model's.

    Raises InputError before anything is written: a wrong base, a place that cannot be written, no space.
    """
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.commands.merge_output import built, check_space, new_directory, text_files
    from nf4tui.data.tokenizer import check_vocabulary, load_tokenizer
    from nf4tui.models.adapter import check_base, read_adapter
    from nf4tui.models.hub import resolve_model
    from nf4tui.models.load import fingerprint, load_model
    from nf4tui.models.merge import Merge, check_originals, output_bytes, write_merged
    from nf4tui.models.qwen2 import read_config
    from nf4tui.models.shards import open_checkpoint
    from nf4tui.parity.merged import Probe

    if adapter is None:
        raise InputError("no adapter: name its directory with --adapter")
    if out is None:
        raise InputError("no place for the merged model: name a new directory with --out")
    if into not in INTO:
        raise InputError(f"--into {into}: must be one of {', '.join(INTO)}")
    directory = resolve_model(choose_model(model, () if data is None else (data,)))
    target = new_directory(out, directory)
    config = read_config(directory)
    adapter_dir = user_path(adapter)
    lora, tensors = read_adapter(adapter_dir, config)
    check_space(target, output_bytes(config, quantise=quantise))
    tokenizer = load_tokenizer(directory)
    check_vocabulary(tokenizer, config.vocab_size)
    files = text_files(directory, tokenizer)
    batch = _probe_batch(data, tokenizer, config.max_position_embeddings)
    weights = load_model(directory)
    check_base(adapter_dir, fingerprint(weights))
    merge = Merge(open_checkpoint(directory), weights, lora, tensors, original=into == "original")
    if merge.original:
        check_originals(merge)
    probe = Probe(weights, lora, tensors, batch)
    with built(target) as folder:
        write_merged(folder, merge, quantise=quantise)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    _report(target, _figures(target, merge, probe, quantise=quantise), as_json)
    return 0


def _probe_batch(data: str | None, tokenizer: "ChatTokenizer", window: int) -> "Batch":
    from nf4tui.parity.merged import built_in_probe, probe

    if data is None:
        return built_in_probe(tokenizer)
    from nf4tui.data.samples import DataOptions, load_samples

    options = DataOptions(max_seq_len=min(2048, window), overlong="truncate")
    return probe(load_samples([data], tokenizer, options).samples)


def _figures(target: Path, merge: "Merge", probe: "Probe", *, quantise: bool) -> "dict[str, Measured]":
    """The trained model, the directory as it was written, and in memory what was not written."""
    from dataclasses import replace

    from nf4tui.models.dense import merged_weights, stored_weights
    from nf4tui.models.load import load_model
    from nf4tui.models.merge import has_originals
    from nf4tui.models.shards import open_checkpoint

    config = merge.weights.config
    written = load_model(target) if quantise else stored_weights(open_checkpoint(target), config)
    figures = {"trained": probe.trained, f"written, into {INTO[merge.original]}": probe.measure(written)}
    del written
    for original in (False, True):
        if (original != merge.original or quantise) and (not original or has_originals(merge)):
            other = merged_weights(replace(merge, original=original))
            figures[f"bfloat16, into {INTO[original]}"] = probe.measure(other)
    return figures


def _report(target: Path, figures: "dict[str, Measured]", as_json: bool) -> None:
    if as_json:
        numbers = [
            number for measured in figures.values() for number in (measured.loss, measured.logits_rel_l2)
        ]
        models = {
            name: {"loss": _finite(measured.loss), "logits_rel_l2": _finite(measured.logits_rel_l2)}
            for name, measured in figures.items()
        }
        nonfinite = sum(not math.isfinite(number) for number in numbers)
        print(json.dumps({"event": "merge", "path": str(target), "models": models, "nonfinite": nonfinite}))
        return
    from nf4tui.sanitize import one_line

    print(f"merged into {one_line(str(target))}")
    width = max(map(len, figures))
    for name, measured in figures.items():
        print(f"{name:{width}}  loss {measured.loss:.4f}  logits relL2 {measured.logits_rel_l2:.2e}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
