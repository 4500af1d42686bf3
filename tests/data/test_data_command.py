"""`nf4tui data`: the report, its JSON, and the errors after it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from nf4tui.commands import data
from nf4tui.commands.data import sample_text
from nf4tui.data.conversation import Conversation
from nf4tui.data.samples import DataOptions, load_samples
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError


def run(
    *paths: str,
    model: str | None = None,
    eval_data: str | None = None,
    packing: bool = True,
    as_json: bool = False,
    **options: Any,
) -> int:
    return data.run(
        paths,
        options=DataOptions(**options),
        model=model,
        eval_data=eval_data,
        packing=packing,
        as_json=as_json,
    )


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_without_a_model_formats_and_records_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), chat("Ho", "Hello."))
    assert run(str(path)) == 0
    assert capsys.readouterr().out == f"{path}: messages, 2 records\n"


def test_with_a_model_the_supervised_tokens_are_marked(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi [bold]", "Hello."), chat("x", "1 " * 900))
    assert run(str(path), model=str(model_dir), max_seq_len=512) == 0
    out = capsys.readouterr().out
    assert "samples      1 of 2 records" in out
    assert "1 dropped: longer than --max-seq-len 512" in out
    assert f"{path}:2: " in out
    assert "<|im_start|>user\nHi [bold]<|im_end|>\n<|im_start|>assistant\n⟦Hello.<|im_end|>⟧\n" in out


def test_json_is_one_object_with_the_same_counts(
    tmp_path: Path, model_dir: Path, tokenizer: ChatTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), chat("Hi", "Hello."), chat("x", "1 " * 900))
    assert run(str(path), model=str(model_dir), as_json=True) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    report = load_samples([path], tokenizer).report
    assert found["event"] == "data"
    assert found["fingerprint"] == report.fingerprint
    assert (found["records"], found["samples"]) == (3, 3)
    assert (found["tokens"], found["supervised_tokens"]) == (report.tokens, report.supervised_tokens)
    assert found["duplicates"] == {"count": 1, "first": [f"{path}:2"]}
    assert sum(bin["samples"] for bin in found["lengths"]) == 3
    assert found["lengths"][-1]["from"] <= report.longest <= found["lengths"][-1]["to"]
    assert found["end_token_id"] == tokenizer.end_token_id in found["stop_token_ids"]


def test_json_without_a_model_says_null_where_nothing_was_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."))
    assert run(str(path), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 1 and found["files"][0]["format"] == "messages"
    assert found["samples"] is None and found["tokens"] is None and found["lengths"] is None


def test_all_bad_records_are_listed_and_then_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), chat("Hi", ""), [1])
    with pytest.raises(InputError, match=r"a\.jsonl:2:\d+: an empty assistant message.*\(and 1 more\)$"):
        run(str(path))
    out = capsys.readouterr().out
    assert "2 bad records" in out and f"{path}:3:1: the line is an array" in out
    assert run(str(path), skip_bad=True) == 0


def test_data_with_nothing_to_learn_from_is_refused_after_the_report(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("x", "1 " * 900))
    with pytest.raises(InputError, match="nothing to learn from"):
        run(str(path), model=str(model_dir), max_seq_len=256)
    assert "1 dropped" in capsys.readouterr().out


def test_sample_data_takes_the_sample_model(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "sample_data" / "train.jsonl", chat("Hi", "Hello."))
    shutil.copytree(model_dir, tmp_path / "sample_data" / "model")
    assert run(str(path), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 1


def test_nothing_in_the_data_reaches_the_terminal_as_a_control_sequence(
    tmp_path: Path, model_dir: Path, tokenizer: ChatTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e [/] [@click=app.quit]x[/]"
    path = write(tmp_path / "a\n\x1b[2Jb.jsonl", chat(attack, attack), chat("a", ""))
    with pytest.raises(InputError):
        run(str(path), model=str(model_dir))
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\u009b\u202e")
    assert "[/] [@click=app.quit]x[/]" in out
    sample = load_samples([write(tmp_path / "b.jsonl", chat(attack, attack))], tokenizer).samples[0]
    for marks in (False, True):
        text = sample_text(sample, tokenizer, marks=marks)
        assert isinstance(text, Text) and "\x1b" not in text.plain


def test_colour_marks_the_same_tokens_as_the_signs_do(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    sample = load_samples([write(tmp_path / "a.jsonl", chat("Hi", "Hello."))], tokenizer).samples[0]
    assert sample.record != Conversation(())
    text = sample_text(sample, tokenizer, marks=False)
    (green,) = [span for span in text.spans if "green" in str(span.style)]
    assert text.plain[green.start : green.end] == "Hello.<|im_end|>"


def test_overlap_and_padding_are_reported(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), chat("Ho", "Hello."), chat("Hu", "Hello."))
    held_out = write(tmp_path / "b.jsonl", chat("Hi", "Hello."), chat("Ho", "Holla."), chat("Ha", "Hello."))
    assert run(str(path), model=str(model_dir), eval_data=str(held_out), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overlap"] == {
        "samples": {"count": 1, "first": [f"{held_out}:1"]},
        "prompts": {"count": 1, "first": [f"{held_out}:2"]},
    }
    assert (found["tokens"] + found["padding_tokens"]) % 64 == 0
    assert run(str(path), model=str(model_dir), eval_data=str(held_out), packing=False) == 0
    out = capsys.readouterr().out
    assert "rows         3 one sample a row; padding" in out
    assert "1 validation samples are also training samples" in out
    assert (
        run(str(held_out), model=str(model_dir), eval_data=str(write(tmp_path / "c.jsonl", chat("z", "z"))))
        == 0
    )
    assert "no sample or prompt of" in capsys.readouterr().out
    with pytest.raises(InputError, match="--eval-data: needs --model"):
        run(str(path), eval_data=str(held_out))


def test_several_files_of_several_formats_are_one_data_set(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a.jsonl", chat("Hi", "Hello."))
    b = write(
        tmp_path / "b.jsonl", {"instruction": "Hi", "output": "Hello."}, {"instruction": "x", "output": "y"}
    )
    c = write(tmp_path / "c.jsonl", {"text": "Once."})
    assert run(str(a), str(tmp_path / "[bc].jsonl"), model=str(model_dir), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    described = [(file["path"], file["format"], file["samples"]) for file in found["files"]]
    assert described == [(str(a), "messages", 1), (str(b), "alpaca", 2), (str(c), "text", 1)]
    assert found["duplicates"] == {"count": 1, "first": [f"{b}:1"]}


def test_the_ends_in_use_are_shown(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."))
    base = Path(shutil.copytree(model_dir, tmp_path / "base"))
    (base / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    assert run(str(path), model=str(base)) == 0
    out = capsys.readouterr().out
    assert "chat form    chatml; an answer ends with <|im_end|> (id " in out
    assert "note         the model has no chat template" in out
