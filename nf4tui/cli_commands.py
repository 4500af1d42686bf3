"""The commands and their flags. None means that a flag was not given; its default is in the help text."""

# ruff: noqa: PLC0415 - a command is imported when it runs, so that `nf4tui --help` stays fast.

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from nf4tui.errors import InputError


def number(kind: type, tokens: Sequence[Any]) -> Any:
    """A flag's text as int or float. Cyclopts alone would round 1.5 to an int.
    Raises InputError that names the flag."""
    (token,) = tokens
    try:
        return kind(token.value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{token.keyword} {token.value!r}: must be {what}") from None


FORMATS = "auto, messages, conversations, prompt-completion, alpaca or text"
Json = Annotated[
    bool, Parameter(name="--json", negative="", help="One JSON object a line on stdout, nothing else.")
]
Model = Annotated[str | None, Parameter(help="Model directory or Hugging Face hub id.")]
Device = Annotated[str, Parameter(help="auto, cuda or cpu.")]


def _flag(help: str) -> Any:
    return Parameter(help=help, negative="")


def _number(help: str) -> Any:
    return Parameter(help=help, negative="", converter=number)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """The settings of a run, as given. Names are those of TrainConfig."""

    model: Annotated[
        str | None, _flag("Model directory or hub id (default: the sample's, or your own default).")
    ] = None
    adapter: Annotated[str | None, _flag("Go on from this PEFT adapter.")] = None
    out: Annotated[str | None, _flag("Run directory (default: runs/DATA-TIME).")] = None
    device: Annotated[str | None, _flag("auto, cuda or cpu (default auto).")] = None
    epochs: Annotated[int | None, _number("Passes over the data (default 3).")] = None
    steps: Annotated[int | None, _number("Optimiser steps, instead of --epochs.")] = None
    batch_size: Annotated[int | None, _number("Rows a micro-batch (default 4).")] = None
    grad_accum: Annotated[int | None, _number("Micro-batches a step (default 1).")] = None
    max_seq_len: Annotated[int | None, _number("Tokens a row (default 2048, or the model's maximum).")] = None
    packing: Annotated[bool | None, Parameter(help="Pack several samples into a row (default on).")] = None
    weights: Annotated[
        str | None, _flag("Comma-separated, one for each DATA: how often an epoch takes it (default 1 each).")
    ] = None
    format: Annotated[str | None, _flag(f"{FORMATS} (default auto).")] = None
    overlong: Annotated[
        str | None, _flag("Samples over --max-seq-len: drop, truncate or error (default drop).")
    ] = None
    skip_bad: Annotated[bool | None, _flag("Count and list bad records instead of refusing the file.")] = None
    supervise: Annotated[
        str | None, _flag("Assistant turns to learn: last, all or completion (default all).")
    ] = None
    rank: Annotated[int | None, _number("LoRA rank (default 16).")] = None
    alpha: Annotated[str | None, _flag("LoRA alpha, or auto: twice the rank (default auto).")] = None
    rslora: Annotated[bool | None, _flag("Scale by alpha / sqrt(rank).")] = None
    targets: Annotated[str | None, _flag("Comma-separated projections (default: all seven).")] = None
    dropout: Annotated[float | None, _number("Dropout on LoRA inputs (default 0).")] = None
    lr: Annotated[str | None, _flag("Peak learning rate, or auto: by rank (default auto).")] = None
    schedule: Annotated[str | None, _flag("cosine, linear or constant (default cosine).")] = None
    warmup: Annotated[
        float | None, _number("Warm-up: a share of all steps below 1, else steps (default 0.03).")
    ] = None
    clip: Annotated[float | None, _number("Maximum global gradient norm, 0 for none (default 1).")] = None
    weight_decay: Annotated[float | None, _number("AdamW's weight decay (default 0.01).")] = None
    eval_data: Annotated[str | None, _flag("Validation file.")] = None
    eval_split: Annotated[
        float | None, _number("Share of the data to validate on, instead of --eval-data.")
    ] = None
    eval_every: Annotated[int | None, _number("Steps between validations (default: once an epoch).")] = None
    save_every: Annotated[
        int | None, _number("Steps between checkpoints (default: once an epoch, at most 500).")
    ] = None
    keep: Annotated[int | None, _number("Checkpoints to keep beside the best (default 3).")] = None
    early_stop: Annotated[int | None, _number("Stop after this many validations without improvement.")] = None
    seed: Annotated[int | None, _number("Seed of everything random (default 0).")] = None
    parity_every: Annotated[int | None, _number("Steps between precision or parity probes (default 50).")] = (
        None
    )
    parity: Annotated[str | None, _flag("warn, stop or off (default warn).")] = None

    def given(self) -> dict[str, Any]:
        """The flags that were given, by name."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}


def train(
    *data: Annotated[str, Parameter(help="JSONL files or globs.")],
    flags: TrainFlags | None = None,
    config: Annotated[Path | None, _flag("TOML file of settings; keys are flag names.")] = None,
    resume: Annotated[bool, _flag("Go on with the run at --out, or the newest of this data.")] = False,
    no_tui: Annotated[bool, _flag("Plain lines instead of the dashboard.")] = False,
    as_json: Json = False,
) -> int:
    """Fine-tune a model on JSONL data."""
    from nf4tui.commands.train import run_flags

    given = (flags or TrainFlags()).given()
    if data:
        given["data"] = data
    return run_flags(given, toml=config, resume=resume, no_tui=no_tui, as_json=as_json)


def watch(run_dir: Annotated[str, Parameter(help="Run directory.")], /) -> int:
    """Follow a live run, or look at a finished one."""
    from nf4tui.commands.watch import run

    return run(run_dir)


def data(
    *files: Annotated[str, Parameter(help="JSONL files or globs.")],
    model: Model = None,
    eval_data: Annotated[str | None, _flag("Validation file, to look for overlap with.")] = None,
    format: Annotated[str, _flag(f"{FORMATS}.")] = "auto",
    overlong: Annotated[str, _flag("Samples over --max-seq-len: drop, truncate or error.")] = "drop",
    skip_bad: Annotated[bool, _flag("Count bad records instead of failing.")] = False,
    supervise: Annotated[str, _flag("last, all or completion.")] = "all",
    max_seq_len: Annotated[int, _number("Tokens a row.")] = 2048,
    batch_size: Annotated[int, _number("Rows a micro-batch, for the count of padding.")] = 4,
    packing: Annotated[bool, Parameter(help="Pack several samples into a row.")] = True,
    as_json: Json = False,
) -> int:
    """Show what is in data files and what training would make of them."""
    from nf4tui.commands.data import run
    from nf4tui.data.samples import DataOptions

    options = DataOptions(
        format=format, overlong=overlong, skip_bad=skip_bad, supervise=supervise, max_seq_len=max_seq_len
    )
    return run(
        files,
        options=options,
        model=model,
        eval_data=eval_data,
        batch_size=batch_size,
        packing=packing,
        as_json=as_json,
    )


def evaluate(
    *data: Annotated[str, Parameter(help="JSONL files or globs.")],
    model: Model = None,
    adapter: Annotated[str | None, _flag("PEFT adapter; without it the base model is evaluated.")] = None,
    device: Device = "auto",
    max_samples: Annotated[int | None, _number("Evaluate only the first N samples.")] = None,
    max_seq_len: Annotated[
        int | None, _number("Longer samples are left out (default 2048, or the model's maximum).")
    ] = None,
    generate: Annotated[bool, Parameter(help="Generate the answers too, for exact_match.")] = True,
    as_json: Json = False,
) -> int:
    """Loss on a file, and how many generated answers equal the file's (exact_match)."""
    from nf4tui.commands.eval import run

    return run(
        data,
        model=model,
        adapter=adapter,
        device=device,
        max_samples=max_samples,
        max_seq_len=max_seq_len,
        generate=generate,
        as_json=as_json,
    )


def generate(
    *,
    model: Model = None,
    adapter: Annotated[str | None, _flag("PEFT adapter.")] = None,
    prompt: Annotated[str | None, _flag("The user's message.")] = None,
    messages: Annotated[str | None, _flag("JSON or JSONL file of a conversation (messages, tools).")] = None,
    system: Annotated[str | None, _flag("System prompt, with --prompt.")] = None,
    device: Device = "auto",
    max_tokens: Annotated[int, _number("Most tokens to generate.")] = 256,
    temperature: Annotated[float, _number("0 is greedy.")] = 0.0,
    top_p: Annotated[float, _number("Sample from the smallest set with this probability.")] = 1.0,
    top_k: Annotated[int, _number("Sample from this many tokens; 0: all.")] = 0,
    seed: Annotated[int, _number("Seed of the sampling.")] = 0,
    as_json: Json = False,
) -> int:
    """Answer one prompt or conversation."""
    from nf4tui.commands.generate import run
    from nf4tui.inference.sampling import Sampling

    return run(
        model=model,
        adapter=adapter,
        prompt=prompt,
        messages=messages,
        system=system,
        device=device,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed),
        as_json=as_json,
    )


def merge(
    *,
    model: Model = None,
    adapter: Annotated[str | None, _flag("PEFT adapter to merge.")] = None,
    out: Annotated[str | None, _flag("New directory for the merged model.")] = None,
    into: Annotated[
        str, _flag("dequantised: the NF4 matrices trained with; original: the stored ones.")
    ] = "dequantised",
    quantise: Annotated[bool, _flag("Store NF4 in bitsandbytes' layout instead of bf16.")] = False,
    data: Annotated[str | None, _flag("JSONL file to measure on (default: built-in sentences).")] = None,
    as_json: Json = False,
) -> int:
    """Write base and adapter as one model, and measure it against the trained one."""
    from nf4tui.commands.merge import run

    return run(
        model=model, adapter=adapter, out=out, into=into, quantise=quantise, data=data, as_json=as_json
    )


def verify(
    *,
    case: Annotated[str | None, _flag("Directory of a recorded oracle.")] = None,
    model: Model = None,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Compare an engine with a recorded oracle (--case), or the GPU with the reference (--model)."""
    from nf4tui.commands.verify import run

    return run(case=case, model=model, device=device, as_json=as_json)


def doctor(*, as_json: Json = False) -> int:
    """Say what this machine can run."""
    from nf4tui.commands.doctor import run

    return run(as_json=as_json)


evaluate.__name__ = "eval"  # the command's name is a builtin's

COMMANDS = (train, watch, data, evaluate, generate, merge, verify, doctor)
