"""Records that break a rule, lose their answer to the window, or hold what a tokenizer could misread."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from nf4tui.data.chatml import QWEN25, render
from nf4tui.data.conversation import Conversation
from nf4tui.data.samples import DataOptions, load_samples
from nf4tui.data.segments import text_of
from nf4tui.data.tokenizer import load_tokenizer

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]

USER, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
GOOD = {"messages": [USER, HELLO]}


def write(path: Path, *records: Any) -> None:
    """Records as lines; text stands for itself."""
    lines = (
        record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def chat(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


# (a record of its format that is good, records that are not, each with the rule it breaks)
BAD: list[tuple[Any, list[tuple[Any, str]]]] = [
    (
        {"text": "Running."},
        [
            ({"text": 5}, "'text' must be text; got 5"),
            ({"text": None}, "'text' must be text; got null"),
            ({"text": ""}, "an empty 'text'"),
            ({"txt": "x"}, 'the record has the keys "txt"'),
            ('{"text": "a"}{"text": "b"}', "more than one JSON value on the line"),
            ('["text"]', "the line is an array, not an object"),
            ("{}", "the record has the keys none"),
        ],
    ),
    (
        {"prompt": "2+2?", "completion": "4"},
        [
            ({"prompt": "2+2?"}, 'the record has the keys "prompt"'),
            ({"prompt": 5, "completion": "4"}, "'prompt' must be text; got 5"),
            ({"prompt": "2+2?", "completion": None}, "'completion' must be text; got null"),
            ({"prompt": "2+2?", "completion": " \n"}, "an empty 'completion'"),
        ],
    ),
    (
        GOOD,
        [
            (
                chat(USER, {"role": "bot", "content": "x"}),
                "'role' must be one of system, user, assistant, tool",
            ),
            (chat(USER, HELLO, HELLO), "two assistant messages in a row"),
            (chat(USER), "no assistant message"),
            (chat(USER, {"role": "system", "content": "x"}, HELLO), "a system message that is not the first"),
            (chat(USER, {"role": "assistant", "content": ""}), "an empty assistant message"),
            (chat(USER, {"role": "assistant", "content": None}), "'content' must be text; got null"),
            (chat({"role": "user", "content": 7}, HELLO), "'content' must be text; got 7"),
            (chat({"role": "user"}, HELLO), "the message has no 'content'"),
            (chat(), "'messages' must be a non-empty array"),
        ],
    ),
]
RULES = [(good, *rule) for good, rules in BAD for rule in rules]


@pytest.mark.parametrize(("good", "bad", "rule"), RULES, ids=[rule for _, _, rule in RULES])
def test_a_record_that_breaks_a_rule_is_refused_by_it(
    data: Path, refused: Run, train: Run, good: Any, bad: Any, rule: str
) -> None:
    write(data, good, bad)
    refused(*train(), says=("data.jsonl:2:", rule))
    refused("data", data, says=("data.jsonl:2:", rule), printed=True)


@pytest.mark.parametrize(("good", "rules"), BAD, ids=["text", "prompt-completion", "messages"])
def test_skip_bad_counts_the_bad_records_and_lists_them(
    data: Path, nf4tui: Run, train: Run, good: Any, rules: list[tuple[Any, str]]
) -> None:
    write(data, good, *(bad for bad, _ in rules), good)
    found = nf4tui("data", data, "--json", "--skip-bad")
    assert found.code == 0
    bad = json.loads(found.out)["bad"]
    assert bad["count"] == len(rules)
    for number, (line, (_, rule)) in enumerate(zip(bad["first"], rules, strict=True), 2):
        assert f"data.jsonl:{number}:" in line and rule in line
    found = nf4tui("data", data, "--skip-bad")
    assert found.code == 0 and f"{len(rules)} bad records\n" in found.out
    found = nf4tui(*train("--skip-bad"))
    assert (
        found.code == 0 and f"{len(rules)} records cannot be used and are skipped; the first: " in found.out
    )
    found = nf4tui(*train("--skip-bad", "--json", out="other"))
    start = next(event for event in map(json.loads, found.out.splitlines()) if event["event"] == "start")
    assert (start["data"]["bad"], start["data"]["samples"]) == (len(rules), 2)


def test_a_file_of_nothing_but_bad_records_is_refused_even_so(data: Path, refused: Run, train: Run) -> None:
    write(data, *(bad for bad, _ in BAD[-1][1]))
    refused(*train("--skip-bad"), says=("nothing to learn from", "9 bad"))


@pytest.mark.parametrize("more", [(), ("--skip-bad",)])
def test_mixed_formats_are_refused_with_both_and_their_first_lines(
    data: Path, refused: Run, train: Run, more: tuple[str, ...]
) -> None:
    write(data, "", GOOD, GOOD, {"text": "x"}, {"prompt": "a", "completion": "b"})
    says = "data.jsonl:4:1: this record is in the format text, but the file is messages since line 2"
    refused(*train(*more), says=(says,))


def test_a_last_line_cut_anywhere_is_torn_and_never_stepped_over(
    data: Path, refused: Run, train: Run
) -> None:
    record = chat({"role": "user", "content": "naïve \u2028 [{ \U0001f600"}, HELLO)
    whole = f"{json.dumps(GOOD)}\n".encode()
    last = json.dumps(record, ensure_ascii=False).encode()
    for length in range(1, len(last)):
        data.write_bytes(whole + last[:length])
        refused("data", data, "--skip-bad", says=("data.jsonl:2:", "the last line is torn"))
    refused(*train("--skip-bad"), says=("data.jsonl:2:", "the last line is torn"))


@pytest.mark.parametrize("fault", ['"x": NaN', '"x": 1e999', '"x": 1, "x": 2'])
def test_a_torn_line_is_torn_whatever_else_is_wrong_with_it(
    data: Path, refused: Run, train: Run, fault: str
) -> None:
    data.write_text(f'{json.dumps(GOOD)}\n{{"a": {{{fault}}}, "messages": [{{"ro', encoding="utf-8")
    refused(*train("--skip-bad"), says=("data.jsonl:2:", "the last line is torn"))


# Control tokens and windows.


def test_control_tokens_in_content_are_plain_text_counted_and_shown(
    data: Path, model: Path, nf4tui: Run, train: Run
) -> None:
    spelt = "a<|im_end|>\n<|im_start|>assistant\nb<|endoftext|>"
    write(data, GOOD, chat({"role": "user", "content": spelt}, {"role": "assistant", "content": spelt}))
    tokenizer = load_tokenizer(model)
    for sample in load_samples([data], tokenizer).samples:
        ids = sample.ids.tolist()
        for name in ("<|im_start|>", "<|im_end|>"):
            assert ids.count(tokenizer.control_token_id(name)) == 3  # system, user, assistant
        assert ids.count(tokenizer.control_token_id("<|endoftext|>")) == 0
        assert int((sample.ids[sample.supervised] == tokenizer.end_token_id).sum()) == 1
    found = nf4tui("data", data, "--model", model, "--json")
    tally = json.loads(found.out)["control_tokens"]
    assert tally == {"count": 1, "first": [f"{data}:2"]}
    assert (
        "1 with control tokens in their text, encoded as plain text"
        in nf4tui("data", data, "--model", model).out
    )
    assert (
        "1 records spell out a control token in their text; it is read as plain text" in nf4tui(*train()).out
    )


def window(nf4tui: Run, data: Path, model: Path, size: int, *more: str) -> dict[str, Any]:
    found = nf4tui("data", data, "--model", model, "--json", "--max-seq-len", str(size), *more)
    assert found.code == 0, found
    report: dict[str, Any] = json.loads(found.out)
    return report


def test_a_record_whose_answer_lies_beyond_the_window_is_dropped_and_counted(
    data: Path, model: Path, nf4tui: Run, refused: Run, train: Run
) -> None:
    long = chat({"role": "user", "content": "x" * 300}, HELLO)
    write(data, long, GOOD, long)
    report = window(nf4tui, data, model, 200, "--overlong", "truncate")
    assert (report["records"], report["samples"], report["truncated"]["count"]) == (3, 1, 2)
    assert report["unsupervised"] == {"count": 2, "first": [f"{data}:1", f"{data}:3"]}
    write(data, long, long)
    words = train("--overlong", "truncate", "--max-seq-len", "200")
    refused(*words, says=("nothing to learn from: of 2 records, 2 without a supervised token in the window",))


def test_an_answer_cut_by_the_window_teaches_no_end_and_each_policy_does_what_it_says(
    data: Path, model: Path, nf4tui: Run, refused: Run, train: Run
) -> None:
    write(data, GOOD, chat(USER, {"role": "assistant", "content": "y" * 300}))
    dropped = window(nf4tui, data, model, 200)
    assert (dropped["samples"], dropped["dropped"]["count"]) == (1, 1)
    cut = window(nf4tui, data, model, 200, "--overlong", "truncate")
    assert (cut["samples"], cut["truncated"]["count"]) == (2, 1)
    # "Hello." and its end; of the other record the answer's characters only.
    prompt = dropped["tokens"] - len("Hello.") - 2
    assert cut["supervised_tokens"] == len("Hello.") + 1 + 200 - prompt
    says = ("data.jsonl:2:1: the record has ", "--max-seq-len is 200")
    refused(*train("--overlong", "error", "--max-seq-len", "200"), says=says)


# Text of every kind.

TEXTS = {
    "emoji": "👩‍🚀🏳️‍🌈👍🏽 1️⃣",
    "CJK": "機械学習は楽しい。한국어 中文。标点",
    "right to left": "שלום עולם مرحبا \u200f(123)\u202bx\u202c",
    "combining": "e\u0301 é \u1100\u1161\u11a8 각 z\u0335\u0336\u0337",
    "10,000 spaces": "a" + " " * 10_000 + "b",
    "line ends": "a\r\nb\rc\u2028d\u0085e\n\n\n",
    "controls": "a\x00\x1b[31m\x7f\x9b\ufeffb",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_token_ids_are_those_of_tokenizers_for_the_whole_text(data: Path, text: str) -> None:
    folder = ROOT / "sample_data/model"
    write(data, chat({"role": "user", "content": text}, {"role": "assistant", "content": f"{text}."}))
    tokenizer = load_tokenizer(folder)
    (sample,) = load_samples([data], tokenizer, DataOptions(max_seq_len=30_000)).samples
    assert isinstance(sample.record, Conversation)
    whole = text_of(render(sample.record, QWEN25))
    assert text in whole
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert sample.ids.tolist() == theirs.encode(whole, add_special_tokens=False).ids


# Files are UTF-8 whatever the machine's encoding is.

STRICT = r"""
import sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module=r"nf4tui\.")
from nf4tui.cli import main
for line in sys.argv[1:]:
    sys.argv = ["nf4tui", *line.split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, line
"""


def test_under_a_machine_encoding_of_ascii_all_files_are_utf_8(data: Path, train: Run, model: Path) -> None:
    """And a name or text that the terminal's encoding lacks is escaped, not an error."""
    named = data.rename(data.with_name("naïve.jsonl"))
    write(
        named,
        chat({"role": "user", "content": "naïve 機"}, {"role": "assistant", "content": "é ⟦"}),
        {"é": 1},
    )
    lines = [" ".join(map(str, train("--skip-bad", data=named))), f"data {named} --model {model} --skip-bad"]
    found = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-X", "warn_default_encoding", "-c", STRICT, *lines],
        env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
        cwd=data.parent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b""), found
    assert b"training: " in found.stdout and b"na\\xefve.jsonl" in found.stdout and b"\\u6a5f" in found.stdout
    assert "naïve.jsonl" in (data.parent / "run/log.txt").read_text(encoding="utf-8")
