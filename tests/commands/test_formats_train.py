"""Every format trains on the sample model, from the command line, alone and mixed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAST = (
    "--no-tui",
    "--json",
    "--steps",
    "2",
    "--rank",
    "2",
    "--max-seq-len",
    "128",
    "--parity",
    "off",
    "--lr",
    "1e-2",
)
QUESTION, ANSWER = "Is 7 even?", "It is odd."
FORMATS: dict[str, dict[str, Any]] = {
    "messages": {
        "messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    },
    "conversations": {
        "conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]
    },
    "prompt-completion": {"prompt": QUESTION, "completion": ANSWER},
    "alpaca": {"instruction": QUESTION, "input": "", "output": ANSWER},
    "text": {"text": f"{QUESTION} {ANSWER}"},
}


def write(path: Path, record: dict[str, Any], count: int = 4) -> Path:
    path.write_text(json.dumps(record) + "\n")
    with path.open("a") as file:
        for _ in range(count - 1):
            file.write(json.dumps(record) + "\n")
    return path


def events_of(done: Any) -> dict[str, list[dict[str, Any]]]:
    assert (done.returncode, done.stderr) == (0, ""), done
    events: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        event = json.loads(line)
        events.setdefault(event["event"], []).append(event)
    return events


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("flag", ["auto", "named"])
def test_a_format_trains(
    tmp_path: Path, run: Callable[..., Any], sample_model: Path, name: str, flag: str
) -> None:
    path = write(tmp_path / "data.jsonl", FORMATS[name])
    named = ("--format", name) if flag == "named" else ()
    events = events_of(run("train", path, "--model", sample_model, *FAST, *named, "--out", "out"))
    first, second = events["step"]
    assert second["loss"] < first["loss"]
    ends = json.loads((tmp_path / "out/adapter/generation_config.json").read_text())["eos_token_id"]
    assert ends == ([1531, 1533] if name == "text" else [1533, 1531])


def test_formats_that_say_the_same_train_the_same(
    tmp_path: Path, run: Callable[..., Any], sample_model: Path
) -> None:
    losses = set()
    for name in ("messages", "conversations", "prompt-completion", "alpaca"):
        path = write(tmp_path / f"{name}.jsonl", FORMATS[name])
        events = events_of(run("train", path, "--model", sample_model, *FAST, "--out", name))
        losses.add(tuple(event["loss"] for event in events["step"]))
    assert len(losses) == 1


def test_files_of_all_formats_are_mixed_by_weight(
    tmp_path: Path, run: Callable[..., Any], sample_model: Path
) -> None:
    for name, record in FORMATS.items():
        write(tmp_path / f"{name}.jsonl", record)
    arguments = ("train", "[ac]*.jsonl", "messages.jsonl", "[pt]*.jsonl", "--model", sample_model, *FAST)
    events = events_of(run(*arguments, "--no-packing", "--weights", "2,0.5,1", "--out", "out"))
    assert events["start"][0]["data"]["samples"] == 20
    refused = run(*arguments, "--weights", "2,1", "--out", "other")
    assert refused.returncode == 2
    assert "--weights: 2 weights for 3 DATA arguments" in refused.stderr
