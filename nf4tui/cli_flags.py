"""The flags that commands share. None means that a flag was not given; its default is in the help text."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
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


def flag(help: str) -> Any:
    """A flag without a --no- form."""
    return Parameter(help=help, negative="")


def text_flag(help: str) -> Any:
    """A flag whose text may begin with a hyphen, or be one."""
    return Parameter(help=help, negative="", allow_leading_hyphen=True)


def number_flag(help: str) -> Any:
    """A flag whose text must be a number of its type."""
    return Parameter(help=help, negative="", converter=number)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """The settings of a run, as given. Names are those of TrainConfig."""

    model: Annotated[
        str | None, flag("Model directory or hub id (default: the sample's, or your own default).")
    ] = None
    adapter: Annotated[str | None, flag("Go on from this PEFT adapter.")] = None
    out: Annotated[str | None, flag("Run directory (default: runs/DATA-TIME).")] = None
    device: Annotated[str | None, flag("auto, cuda or cpu (default auto).")] = None
    epochs: Annotated[int | None, number_flag("Passes over the data (default 3).")] = None
    steps: Annotated[int | None, number_flag("Optimiser steps, instead of --epochs.")] = None
    batch_size: Annotated[int | None, number_flag("Rows a micro-batch (default 4).")] = None
    grad_accum: Annotated[int | None, number_flag("Micro-batches a step (default 1).")] = None
    max_seq_len: Annotated[
        int | None, number_flag("Tokens a row (default 2048, or the model's maximum).")
    ] = None
    packing: Annotated[bool | None, Parameter(help="Pack several samples into a row (default on).")] = None
    weights: Annotated[
        str | None, flag("Comma-separated, one for each DATA: how often an epoch takes it (default 1 each).")
    ] = None
    format: Annotated[str | None, flag(f"{FORMATS} (default auto).")] = None
    overlong: Annotated[
        str | None, flag("Samples over --max-seq-len: drop, truncate or error (default drop).")
    ] = None
    skip_bad: Annotated[bool | None, flag("Count and list bad records instead of refusing the file.")] = None
    supervise: Annotated[
        str | None, flag("Assistant turns to learn: last, all or completion (default all).")
    ] = None
    rank: Annotated[int | None, number_flag("LoRA rank (default 16).")] = None
    alpha: Annotated[str | None, flag("LoRA alpha, or auto: twice the rank (default auto).")] = None
    rslora: Annotated[bool | None, flag("Scale by alpha / sqrt(rank).")] = None
    targets: Annotated[str | None, flag("Comma-separated projections (default: all seven).")] = None
    dropout: Annotated[float | None, number_flag("Dropout on LoRA inputs (default 0).")] = None
    lr: Annotated[str | None, flag("Peak learning rate, or auto: by rank (default auto).")] = None
    schedule: Annotated[str | None, flag("cosine, linear or constant (default cosine).")] = None
    warmup: Annotated[
        float | None, number_flag("Warm-up: a share of all steps below 1, else steps (default 0.03).")
    ] = None
    clip: Annotated[float | None, number_flag("Maximum global gradient norm, 0 for none (default 1).")] = None
    weight_decay: Annotated[float | None, number_flag("AdamW's weight decay (default 0.01).")] = None
    eval_data: Annotated[str | None, flag("Validation file.")] = None
    eval_split: Annotated[
        float | None, number_flag("Share of the data to validate on, instead of --eval-data.")
    ] = None
    eval_every: Annotated[int | None, number_flag("Steps between validations (default: once an epoch).")] = (
        None
    )
    save_every: Annotated[
        int | None, number_flag("Steps between checkpoints (default: once an epoch, at most 500).")
    ] = None
    keep: Annotated[int | None, number_flag("Checkpoints to keep beside the best (default 3).")] = None
    early_stop: Annotated[
        int | None, number_flag("Stop after this many validations without improvement.")
    ] = None
    seed: Annotated[int | None, number_flag("Seed of everything random (default 0).")] = None
    parity_every: Annotated[
        int | None, number_flag("Steps between precision or parity probes (default 50).")
    ] = None
    parity: Annotated[str | None, flag("warn, stop or off (default warn).")] = None

    def given(self) -> dict[str, Any]:
        """The flags that were given, by name."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen."""

    temperature: Annotated[float, number_flag("0 is greedy.")] = 0.0
    top_p: Annotated[float, number_flag("Sample from the smallest set with this probability.")] = 1.0
    top_k: Annotated[int, number_flag("Sample from this many tokens; 0: all.")] = 0
    repetition_penalty: Annotated[float, number_flag("Above 1: repeat less (CTRL's rule).")] = 1.0
    seed: Annotated[int, number_flag("Seed of the sampling.")] = 0
    stop: Annotated[tuple[str, ...], text_flag("End the answer before this text; may be repeated.")] = ()

    def sampling(self) -> Any:
        """The Sampling of these flags."""
        from nf4tui.inference.sampling import Sampling  # noqa: PLC0415 - so that `--help` stays fast

        names = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
        return Sampling(**{name: getattr(self, name) for name in names})
