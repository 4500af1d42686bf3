"""The commands and their flags. None means that a flag was not given; its default is in the help text."""

# ruff: noqa: PLC0415 - a command is imported when it runs, so that `nf4tui --help` stays fast.

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nf4tui.cli_flags import (
    FORMATS,
    Device,
    Json,
    Model,
    SamplingFlags,
    TrainFlags,
    flag,
    number_flag,
    text_flag,
)


def train(
    *data: Annotated[str, Parameter(help="JSONL files or globs.")],
    flags: TrainFlags | None = None,
    config: Annotated[Path | None, flag("TOML file of settings; keys are flag names.")] = None,
    resume: Annotated[bool, flag("Go on with the run at --out, or the newest of this data.")] = False,
    no_tui: Annotated[bool, flag("Plain lines instead of the dashboard.")] = False,
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
    eval_data: Annotated[str | None, flag("Validation file, to look for overlap with.")] = None,
    format: Annotated[str, flag(f"{FORMATS}.")] = "auto",
    overlong: Annotated[str, flag("Samples over --max-seq-len: drop, truncate or error.")] = "drop",
    skip_bad: Annotated[bool, flag("Count bad records instead of failing.")] = False,
    supervise: Annotated[str, flag("last, all or completion.")] = "all",
    max_seq_len: Annotated[int, number_flag("Tokens a row.")] = 2048,
    batch_size: Annotated[int, number_flag("Rows a micro-batch, for the count of padding.")] = 4,
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
    adapter: Annotated[str | None, flag("PEFT adapter; without it the base model is evaluated.")] = None,
    device: Device = "auto",
    max_samples: Annotated[int | None, number_flag("Evaluate only the first N samples.")] = None,
    max_seq_len: Annotated[
        int | None, number_flag("Longer samples are left out (default 2048, or the model's maximum).")
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
    adapter: Annotated[str | None, flag("PEFT adapter.")] = None,
    prompt: Annotated[str | None, text_flag("The user's message; - reads standard input.")] = None,
    messages: Annotated[str | None, flag("JSON or JSONL file of a conversation (messages, tools).")] = None,
    record: Annotated[int, number_flag("Which record of --messages.")] = 1,
    system: Annotated[str | None, text_flag("System prompt, with --prompt.")] = None,
    device: Device = "auto",
    max_tokens: Annotated[int, number_flag("Most tokens to generate.")] = 256,
    flags: SamplingFlags | None = None,
    compare: Annotated[bool, flag("The base model's answer, too.")] = False,
    as_json: Json = False,
) -> int:
    """Answer one prompt or conversation."""
    from nf4tui.commands.generate import run

    chosen = flags or SamplingFlags()
    return run(
        model=model,
        adapter=adapter,
        prompt=prompt,
        messages=messages,
        record=record,
        system=system,
        device=device,
        max_tokens=max_tokens,
        sampling=chosen.sampling(),
        stop=chosen.stop,
        compare=compare,
        as_json=as_json,
    )


def chat(
    *,
    model: Model = None,
    adapter: Annotated[str | None, flag("PEFT adapter.")] = None,
    system: Annotated[str | None, text_flag("System prompt.")] = None,
    tools: Annotated[str | None, flag("JSON file of the tools offered.")] = None,
    device: Device = "auto",
    max_tokens: Annotated[int, number_flag("Most tokens of an answer.")] = 1024,
    flags: SamplingFlags | None = None,
    compare: Annotated[bool, flag("The base model's answer, too.")] = False,
) -> int:
    """Talk with a model."""
    from nf4tui.commands.chat import run

    chosen = flags or SamplingFlags()
    return run(
        model=model,
        adapter=adapter,
        system=system,
        tools=tools,
        device=device,
        max_tokens=max_tokens,
        sampling=chosen.sampling(),
        stop=chosen.stop,
        compare=compare,
    )


def merge(
    *,
    model: Model = None,
    adapter: Annotated[str | None, flag("PEFT adapter to merge.")] = None,
    out: Annotated[str | None, flag("New directory for the merged model.")] = None,
    into: Annotated[
        str, flag("dequantised: the NF4 matrices trained with; original: the stored ones.")
    ] = "dequantised",
    quantise: Annotated[bool, flag("Store NF4 in bitsandbytes' layout instead of bf16.")] = False,
    data: Annotated[str | None, flag("JSONL file to measure on (default: built-in sentences).")] = None,
    as_json: Json = False,
) -> int:
    """Write base and adapter as one model, and measure it against the trained one."""
    from nf4tui.commands.merge import run

    return run(
        model=model, adapter=adapter, out=out, into=into, quantise=quantise, data=data, as_json=as_json
    )


def verify(
    *,
    case: Annotated[str | None, flag("Directory of a recorded oracle.")] = None,
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

COMMANDS = (train, watch, data, evaluate, generate, chat, merge, verify, doctor)
