"""nf4tui eval and nf4tui generate on the sample model, as users start them."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def adapter(tmp_path: Path, run: Run, data: Path, sample_model: Path) -> Path:
    flags = ("--no-tui", "--steps", "2", "--lr", "0.02", "--rank", "4", "--parity", "off", "--out", "run")
    found = run("train", data, "--model", sample_model, *flags)
    assert found.returncode == 0, found.stderr
    return tmp_path / "run" / "adapter"


def evaluated(run: Run, *arguments: Any) -> dict[str, Any]:
    found = run("eval", *arguments, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    (line,) = found.stdout.splitlines()
    event: dict[str, Any] = json.loads(line)
    return event


def test_eval_reports_the_base_model_and_the_adapter(
    run: Run, data: Path, sample_model: Path, adapter: Path
) -> None:
    base = evaluated(run, data, "--model", sample_model)
    tuned = evaluated(run, data, "--model", sample_model, "--adapter", adapter)
    assert (base["event"], base["samples"], base["step"], tuned["step"]) == ("eval", 8, None, 2)
    assert base["tokens"] == tuned["tokens"] > 0
    assert 0 <= base["exact_match"] <= 1
    assert math.isfinite(base["loss"]) and tuned["loss"] < base["loss"]


def test_eval_takes_the_first_samples_and_need_not_generate(run: Run, data: Path, sample_model: Path) -> None:
    event = evaluated(run, data, "--model", sample_model, "--max-samples", "3", "--no-generate")
    assert (event["samples"], event["exact_match"]) == (3, None)


def test_eval_says_what_it_left_out(run: Run, data: Path, sample_model: Path) -> None:
    with data.open("a") as file:
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y " * 300}]
        file.write(json.dumps({"messages": turns}) + "\n")
    found = run("eval", data, "--model", sample_model, "--max-seq-len", "128", "--no-generate")
    assert found.returncode == 0
    assert "samples      8\n" in found.stdout
    assert "left out     1 samples longer than 128 tokens\n" in found.stdout


def test_eval_of_text_is_aligned_lines_without_progress_off_a_terminal(
    run: Run, data: Path, sample_model: Path
) -> None:
    found = run("eval", data, "--model", sample_model)
    assert (found.returncode, found.stderr) == (0, "")
    assert [line[:13].rstrip() for line in found.stdout.splitlines()] == [
        "loss",
        "tokens",
        "samples",
        "exact_match",
    ]


def test_generate_is_greedy_and_the_same_each_time(run: Run, sample_model: Path) -> None:
    found = [run("generate", "--model", sample_model, "--prompt", "Who are you?") for _ in range(2)]
    assert found[0].returncode == 0 and found[0].stdout.strip()
    assert found[0].stdout == found[1].stdout
    assert found[0].stderr == ""


def test_generate_as_json_holds_the_text_and_why_it_ended(run: Run, sample_model: Path) -> None:
    flags = ("generate", "--model", sample_model, "--prompt", "Who are you?", "--json")
    whole = json.loads(run(*flags).stdout)
    assert whole["finish"] == "stop" and whole["tokens"] > 2
    cut = json.loads(run(*flags, "--max-tokens", "2").stdout)
    assert (cut["finish"], cut["tokens"]) == ("length", 2)
    assert whole["text"].startswith(cut["text"])


def test_sampling_follows_the_seed(run: Run, sample_model: Path) -> None:
    flags = (
        "generate",
        "--model",
        sample_model,
        "--prompt",
        "Hello",
        "--temperature",
        "2",
        "--max-tokens",
        "12",
    )
    first, again, other = (run(*flags, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other


def test_messages_with_tools_are_answered_from_what_stands_before_the_answer(
    tmp_path: Path, run: Run, sample_model: Path
) -> None:
    first = (sample_model.parent / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[0]
    record = json.loads(first)
    assert record["messages"][-1]["role"] == "assistant"
    (tmp_path / "whole.jsonl").write_text(first + "\n")
    record["messages"].pop()
    (tmp_path / "asked.json").write_text(json.dumps(record, indent=1))
    answers = [
        run("generate", "--model", sample_model, "--messages", name) for name in ("whole.jsonl", "asked.json")
    ]
    assert answers[0].returncode == 0
    assert answers[0].stdout == answers[1].stdout != "\n"


def test_a_prompt_longer_than_the_model_is_refused(run: Run, sample_model: Path) -> None:
    found = run("generate", "--model", sample_model, "--prompt", "x y " * 3000)
    assert found.returncode == 2 and "but the model takes 2048; shorten it" in found.stderr


def test_what_the_model_says_cannot_reach_the_terminal_as_control_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sample_model: Path
) -> None:
    from nf4tui.commands import generate
    from nf4tui.inference import answer
    from nf4tui.inference.sampling import Sampling

    monkeypatch.setattr(answer, "stream_text", lambda ids, tokenizer: iter(["a\x1b", "]0;x\x07\u202eb\n"]))
    assert generate.run(model=str(sample_model), prompt="x", sampling=Sampling()) == 0
    assert capsys.readouterr().out == "a\\x1b]0;x\\x07\\u202eb\n\n"


def test_generate_answers_the_record_that_was_asked_for(run: Run, sample_model: Path, data: Path) -> None:
    def generated(*arguments: Any) -> Any:
        return run("generate", "--model", sample_model, "--messages", data, "--max-tokens", "5", *arguments)

    first, third = generated(), generated("--record", "3")
    assert first.stderr.startswith("(record 1 of 8; --record chooses another)\n")
    assert third.stderr.startswith("(record 3 of 8;")
    for number in ("0", "9"):
        refused = generated("--record", number)
        assert refused.returncode == 2 and f"--record {number}: {data} holds 8 records" in refused.stderr


def test_generate_compares_the_base_with_the_adapter(run: Run, sample_model: Path, adapter: Path) -> None:
    arguments = ("generate", "--model", sample_model, "--prompt", "Is 3 even?", "--max-tokens", "9")
    alone = {
        name: json.loads(run(*arguments, *flags, "--json").stdout)
        for name, flags in (("base", ()), ("adapter", ("--adapter", adapter)))
    }
    both = json.loads(run(*arguments, "--adapter", adapter, "--compare", "--json").stdout)
    for name in alone:
        assert both[name] == {key: alone[name][key] for key in ("text", "tokens", "finish")}
    assert both["base"] != both["adapter"]
    shown = run(*arguments, "--adapter", adapter, "--compare").stdout
    assert shown.startswith("base:\n") and "\nadapter:\n" in shown
    refused = run(*arguments, "--compare")
    assert refused.returncode == 2 and "--compare: needs --adapter" in refused.stderr


def test_generate_stops_before_a_text_and_penalises_repetition(run: Run, sample_model: Path) -> None:
    arguments = (
        "generate",
        "--model",
        sample_model,
        "--prompt",
        "Who are you?",
        "--max-tokens",
        "60",
        "--json",
    )
    whole = json.loads(run(*arguments).stdout)["text"]
    word = whole.split()[2]
    cut = json.loads(run(*arguments, "--stop", "never", "--stop", word).stdout)
    assert (cut["text"], cut["finish"]) == (whole[: whole.index(word)], "stop_text")
    other = json.loads(run(*arguments, "--repetition-penalty", "3").stdout)["text"]
    assert other != whole


def test_a_prompt_may_come_from_standard_input_or_begin_with_a_hyphen(
    environment: dict[str, str], sample_model: Path, run: Run
) -> None:
    arguments = ["generate", "--model", str(sample_model), "--max-tokens", "5", "--prompt"]
    given = run(*arguments, "-3 - what?")
    piped = subprocess.run(
        [sys.executable, "-m", "nf4tui", *arguments, "-"],
        input="-3 - what?\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (given.returncode, piped.returncode, piped.stderr) == (0, 0, given.stderr)
    assert given.stdout == piped.stdout
