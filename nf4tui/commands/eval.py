"""`nf4tui eval DATA`: the loss on a file, and the share of its last answers that the model generates right."""

import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from nf4tui.errors import InputError
from nf4tui.user_path import user_path

DEFAULT_WINDOW = 2048
BATCH_SIZE = 4


def run(
    data: tuple[str, ...],
    *,
    model: str | None = None,
    adapter: str | None = None,
    device: str = "auto",
    max_samples: int | None = None,
    max_seq_len: int | None = None,
    generate: bool = True,
    as_json: bool = False,
) -> int:
    """Prints loss, tokens, samples and exact_match. Raises Nf4tuiError.

    max_seq_len: longer samples are left out, and counted; None: 2048, or the model's maximum.
    """
    if not data:
        raise InputError("no data: name at least one JSONL file, as in `nf4tui eval heldout.jsonl`")
    if max_samples is not None and max_samples < 1:
        raise InputError(f"--max-samples {max_samples}: must be at least 1")
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.data.conversation import Conversation
    from nf4tui.data.samples import DataOptions, load_samples
    from nf4tui.inference.evaluate import exact_matches, loss_of
    from nf4tui.inference.load import load

    step = _step_of(adapter)
    loaded = load(choose_model(model, data), adapter, device)
    if max_seq_len is not None and max_seq_len > loaded.window:
        raise InputError(f"--max-seq-len {max_seq_len}: the model takes at most {loaded.window} tokens")
    window = min(DEFAULT_WINDOW, loaded.window) if max_seq_len is None else max_seq_len
    dataset = load_samples(data, loaded.tokenizer, DataOptions(max_seq_len=window))
    samples = dataset.samples[:max_samples]
    total = loss_of(loaded.engine, samples, batch_size=BATCH_SIZE, seq_len=window)
    exact_match = None
    asked = [sample for sample in samples if isinstance(sample.record, Conversation)]
    if generate and asked:
        answers = exact_matches(loaded.engine, asked, loaded.tokenizer, loaded.window)
        exact_match = sum(_counted(answers, len(asked))) / len(asked)
    result: dict[str, Any] = {
        "event": "eval",
        "step": step,
        "loss": total.total / total.tokens,
        "tokens": total.tokens,
        "samples": len(samples),
        "exact_match": exact_match,
        "dropped": dataset.report.dropped.count,
    }
    if as_json:
        finite = {name: _finite(value) for name, value in result.items()}
        print(json.dumps({**finite, "nonfinite": int(not math.isfinite(result["loss"]))}))
    else:
        _print_text(result, window)
    return 0


def _step_of(adapter: str | None) -> int | None:
    """The training step of an adapter that nf4tui wrote; None where nothing says it."""
    if adapter is None:
        return None
    from nf4tui.small_files import read_json_object

    state = user_path(adapter) / "state.json"
    step = read_json_object(state).get("step") if state.is_file() else None
    return step if isinstance(step, int) else None


def _counted(answers: Iterable[bool], total: int) -> Iterator[bool]:
    """The answers, with a count on a terminal."""
    shown = sys.stderr.isatty()
    for number, answer in enumerate(answers, start=1):
        if shown:
            sys.stderr.write(f"\rgenerated {number}/{total}" + ("\r\x1b[K" if number == total else ""))
            sys.stderr.flush()
        yield answer


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_text(result: dict[str, Any], window: int) -> None:
    from nf4tui.headless import number

    print(f"loss         {number(result['loss'], '.4f')}")
    print(f"tokens       {result['tokens']} supervised")
    print(f"samples      {result['samples']}")
    if result["exact_match"] is not None:
        print(f"exact_match  {result['exact_match']:.3f}")
    if result["dropped"]:
        print(f"left out     {result['dropped']} samples longer than {window} tokens")
