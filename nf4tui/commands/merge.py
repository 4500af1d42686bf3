"""`nf4tui merge`: a base and its adapter as one model directory, and how far it is from what was trained.

DIR is made whole beside its place and then renamed: a name that exists is a model that is complete.
"""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nf4tui.errors import InputError

if TYPE_CHECKING:
    from nf4tui.data.tokenizer import ChatTokenizer
    from nf4tui.engine import Batch
    from nf4tui.models.merge import Merge
    from nf4tui.parity.merged import Measured, Probe

INTO = ("dequantised", "original")
# What a tokenizer is made of; copied as it is.
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)


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
    from nf4tui.data.tokenizer import check_vocabulary, load_tokenizer
    from nf4tui.models.adapter import check_base, read_adapter
    from nf4tui.models.hub import resolve_model
    from nf4tui.models.load import fingerprint, load_model
    from nf4tui.models.merge import Merge, check_originals, output_bytes
    from nf4tui.models.qwen2 import read_config
    from nf4tui.models.shards import open_checkpoint
    from nf4tui.parity.merged import Probe

    if adapter is None:
        raise InputError("no adapter: name its directory with --adapter")
    if out is None:
        raise InputError("no place for the merged model: name a new directory with --out")
    if into not in INTO:
        raise InputError(f"--into {into}: must be one of {', '.join(INTO)}")
    directory = resolve_model(choose_model(model, ()))
    target = _target(out, directory)
    adapter_dir = Path(adapter).expanduser()
    config = read_config(directory)
    tokenizer = load_tokenizer(directory)
    check_vocabulary(tokenizer, config.vocab_size)
    lora, tensors = read_adapter(adapter_dir, config)
    weights = load_model(directory)
    check_base(adapter_dir, fingerprint(weights))
    merge = Merge(open_checkpoint(directory), weights, lora, tensors, original=into == "original")
    if merge.original:
        check_originals(merge)
    _check_space(target, output_bytes(merge, quantise=quantise))
    probe = Probe(weights, lora, tensors, _probe_batch(data, tokenizer, config.max_position_embeddings))
    _write(target, merge, directory, tokenizer, quantise=quantise)
    _report(target, _figures(target, merge, probe, quantise=quantise), as_json)
    return 0


def _target(out: str, model: Path) -> Path:
    """The place to write to. Raises InputError unless a new directory can be made there."""
    path = Path(out).expanduser()
    try:
        if path.is_symlink():
            raise InputError(f"{path}: is a link; name a new directory with --out")
        if path.is_dir() and any(path.iterdir()):
            raise InputError(f"{path}: is not empty; name a new directory with --out")
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: exists and is no directory; name a new one with --out")
        if path.resolve().is_relative_to(model.resolve()):
            raise InputError(f"{path}: lies in the model's own directory; name another one with --out")
        parent = next(folder for folder in path.absolute().parents if folder.exists())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be used ({error}); name another --out") from None
    if not parent.is_dir():
        raise InputError(f"{parent}: is a file, so {path} cannot be made; name another --out")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{parent}: cannot be written; name another --out")
    return path


def _check_space(target: Path, needed: int) -> None:
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if needed * 1.01 + 2**26 > free:  # the tokenizer and the file system's own need something, too
        raise InputError(
            f"{target}: the merged model takes {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free;"
            " free some, or name another --out"
        )


def _probe_batch(data: str | None, tokenizer: "ChatTokenizer", window: int) -> "Batch":
    from nf4tui.parity.merged import built_in_probe, probe

    if data is None:
        return built_in_probe(tokenizer)
    from nf4tui.data.samples import DataOptions, load_samples

    options = DataOptions(max_seq_len=min(2048, window), overlong="truncate")
    return probe(load_samples([data], tokenizer, options).samples)


def _write(target: Path, merge: "Merge", model: Path, tokenizer: "ChatTokenizer", *, quantise: bool) -> None:
    """The whole directory under a temporary name, then renamed."""
    from nf4tui.models.merge import write_merged
    from nf4tui.runs import durable

    temporary = target.absolute().parent / f"{durable.TEMPORARY}{target.name}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        try:
            write_merged(temporary, merge, quantise=quantise)
            _write_tokenizer(temporary, model, tokenizer)
            for path in temporary.iterdir():
                durable.sync(path)
            durable.sync(temporary)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        durable.sync(target.absolute().parent)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); name another --out") from None


def _write_tokenizer(folder: Path, model: Path, tokenizer: "ChatTokenizer") -> None:
    """The tokenizer's files, the template that conversations were written with, and the ends in use."""
    from nf4tui.data.chatml import PLAIN_TEMPLATE
    from nf4tui.small_files import read_json_object

    for name in _TOKENIZER_FILES:
        if (model / name).exists():
            shutil.copyfile(model / name, folder / name)
    if not tokenizer.has_template:
        (folder / "chat_template.jinja").write_text(PLAIN_TEMPLATE, encoding="utf-8")
    path = model / "generation_config.json"
    generation = read_json_object(path) if path.exists() else {}
    generation["eos_token_id"] = list(tokenizer.stop_ids)
    (folder / path.name).write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def _figures(target: Path, merge: "Merge", probe: "Probe", *, quantise: bool) -> "dict[str, Measured]":
    """The trained model, the directory as it was written, and in memory the choice that was not taken."""
    from dataclasses import replace

    from nf4tui.models.dense import merged_weights, stored_weights
    from nf4tui.models.load import load_model
    from nf4tui.models.merge import has_originals
    from nf4tui.models.shards import open_checkpoint

    config = merge.weights.config
    written = load_model(target) if quantise else stored_weights(open_checkpoint(target), config)
    chosen = INTO[merge.original]
    figures = {"trained": probe.trained, f"written, into {chosen}": probe.measure(written)}
    for original in (False, True):
        if (original != merge.original or quantise) and (not original or has_originals(merge)):
            other = merged_weights(replace(merge, original=original))
            figures[f"bfloat16, into {INTO[original]}"] = probe.measure(other)
    return figures


def _report(target: Path, figures: "dict[str, Measured]", as_json: bool) -> None:
    if as_json:
        models: dict[str, Any] = {
            name: {"loss": measured.loss, "logits_rel_l2": measured.logits_rel_l2}
            for name, measured in figures.items()
        }
        print(json.dumps({"event": "merge", "path": str(target), "models": models}))
        return
    from nf4tui.sanitize import one_line

    print(f"merged into {one_line(str(target))}")
    width = max(map(len, figures))
    for name, measured in figures.items():
        print(f"{name:{width}}  loss {measured.loss:.4f}  logits relL2 {measured.logits_rel_l2:.2e}")
