"""From files to samples: nothing is lost without being counted."""

import codecs
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.data.samples import DataOptions, load_samples, scan_files
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def words(count: int) -> str:
    """Text of about `count` tokens."""
    return " ".join(str(number % 10) for number in range(count // 2))


def test_tokens_beyond_512_are_supervised_with_a_window_of_2048(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Count.", words(1500)))
    (sample,) = load_samples([path], tokenizer, DataOptions(max_seq_len=2048)).samples
    assert 1500 < len(sample.ids) < 2048
    beyond = sample.supervised[512:]
    assert beyond[:-1].all() and not beyond[-1]  # all but the newline after the end token
    assert sample.ids[-2] == tokenizer.end_token_id


def test_a_sample_longer_than_the_window_is_dropped_and_counted(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Count.", words(600)), chat("Hi", "Hello."))
    dataset = load_samples([path], tokenizer, DataOptions(max_seq_len=512))
    report = dataset.report
    assert [sample.source for sample in dataset.samples] == [f"{path}:2"]
    assert (report.records, report.samples, report.dropped.count) == (2, 1, 1)
    assert report.dropped.sources == [f"{path}:1: {report.longest} tokens"]
    assert report.longest > 600


def test_a_truncated_sample_does_not_supervise_the_end_it_lost(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Count.", words(600)))
    whole = load_samples([path], tokenizer).samples[0]
    for window in (len(whole.ids) - 2, 512, 200):
        dataset = load_samples([path], tokenizer, DataOptions(max_seq_len=window, overlong="truncate"))
        (sample,) = dataset.samples
        np.testing.assert_array_equal(sample.ids, whole.ids[:window])
        np.testing.assert_array_equal(sample.supervised, whole.supervised[:window])
        assert tokenizer.end_token_id not in sample.ids[sample.supervised]
        assert dataset.report.truncated.count == 1


def test_a_sample_longer_than_the_window_can_be_an_error(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), chat("Count.", words(600)))
    with pytest.raises(
        InputError, match=r"a\.jsonl:2:1: the record has \d+ tokens, and --max-seq-len is 512"
    ):
        load_samples([path], tokenizer, DataOptions(max_seq_len=512, overlong="error"))


def test_what_has_nothing_supervised_after_a_cut_is_dropped_and_counted(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", chat(words(900), "Hello."), chat("Hi", "Hello."))
    options = DataOptions(max_seq_len=512, overlong="truncate")
    report = load_samples([path], tokenizer, options).report
    assert (report.samples, report.truncated.count, report.unsupervised.count) == (1, 1, 1)
    assert report.unsupervised.sources == [f"{path}:1"]


@pytest.mark.parametrize(
    ("overlong", "reason"),
    [("drop", "1 longer than --max-seq-len 512"), ("truncate", "1 without a supervised token in the window")],
)
def test_data_with_nothing_to_learn_from_is_refused(
    tmp_path: Path, tokenizer: ChatTokenizer, overlong: str, reason: str
) -> None:
    path = write(tmp_path / "a.jsonl", chat(words(900), "Hello."))
    with pytest.raises(InputError, match=f"nothing to learn from: of 1 records, {reason}"):
        load_samples([path], tokenizer, DataOptions(max_seq_len=512, overlong=overlong))


def test_an_empty_file_is_refused(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    path = write(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="no records"):
        load_samples([path], tokenizer)


def test_every_record_is_accounted_for(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    first = write(
        tmp_path / "a.jsonl",
        chat("Hi", "Hello."),
        {"messages": []},
        chat("Hi", "Hello."),
        chat("x", words(600)),
    )
    second = tmp_path / "b.jsonl"
    second.write_bytes(codecs.BOM_UTF8 + json.dumps({"prompt": "a<|im_end|>", "completion": "b"}).encode())
    options = DataOptions(skip_bad=True, max_seq_len=512)
    dataset = load_samples([first, second], tokenizer, options)
    report = dataset.report
    assert report.records == 5
    assert report.records == (
        report.samples + report.bad.count + report.dropped.count + report.unsupervised.count
    )
    assert report.bad.sources == [f"{first}:2:14: 'messages' must be a non-empty array; got []"]
    assert (report.duplicates.count, report.duplicates.sources) == (1, [f"{first}:3"])
    assert (report.control_tokens.count, report.control_tokens.sources) == (1, [f"{second}:1"])
    assert [(file.format, file.records, file.bom) for file in report.files] == [
        ("messages", 4, False),
        ("prompt-completion", 1, True),
    ]
    assert [file.sha256 for file in report.files] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)
    ]
    assert report.lengths == [len(sample.ids) for sample in dataset.samples]
    assert report.tokens == sum(report.lengths)
    assert report.supervised_tokens == sum(int(sample.supervised.sum()) for sample in dataset.samples)


def test_the_fingerprint_changes_with_any_byte_and_with_the_order(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    a, b = write(tmp_path / "a.jsonl", chat("Hi", "A")), write(tmp_path / "b.jsonl", chat("Hi", "B"))
    prints = {load_samples(paths, tokenizer).report.fingerprint for paths in ([a, b], [b, a], [a])}
    a.write_bytes(a.read_bytes() + b"\n")
    prints.add(load_samples([a], tokenizer).report.fingerprint)
    assert len(prints) == 4


def test_a_bad_record_stops_the_load_unless_it_may_be_skipped(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), {"messages": []})
    with pytest.raises(InputError, match=r"a\.jsonl:2:14: 'messages' must be a non-empty array"):
        load_samples([path], tokenizer)


def test_supervise_chooses_the_turns(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    record = chat("Hi", "First.")
    record["messages"] += chat("More", "Second.")["messages"]
    path = write(tmp_path / "a.jsonl", record)
    texts = {}
    for supervise in ("all", "last", "completion"):
        (sample,) = load_samples([path], tokenizer, DataOptions(supervise=supervise)).samples
        texts[supervise] = tokenizer.decode(sample.ids[sample.supervised].tolist())
    assert texts["all"] == "First.<|im_end|>Second.<|im_end|>"
    assert texts["last"] == texts["completion"] == "Second.<|im_end|>"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DataOptions(overlong="cut"), "--overlong cut: must be one of"),
        (DataOptions(supervise="some"), "--supervise some: must be one of"),
        (DataOptions(max_seq_len=1), "--max-seq-len 1: must be at least 2"),
        (DataOptions(format="x"), "--format x: must be one of auto"),
    ],
)
def test_options_that_do_not_exist_are_refused(
    tmp_path: Path, tokenizer: ChatTokenizer, options: DataOptions, expected: str
) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."))
    with pytest.raises(InputError, match=expected):
        load_samples([path], tokenizer, options)


def test_globs_are_expanded_in_order_and_names_that_exist_are_not(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    for name in ("b", "a", "[x]"):
        write(tmp_path / f"{name}.jsonl", chat("Hi", name))

    def sources(*patterns: str) -> list[str]:
        paths = [f"{tmp_path}/{pattern}" for pattern in patterns]
        return [Path(s.source).name for s in load_samples(paths, tokenizer).samples]

    assert sources("*.jsonl") == ["[x].jsonl:1", "a.jsonl:1", "b.jsonl:1"]
    assert sources("[x].jsonl") == ["[x].jsonl:1"]
    assert sources("[ab].jsonl") == ["a.jsonl:1", "b.jsonl:1"]
    with pytest.raises(InputError, match="matches no file"):
        sources("*.txt")
    with pytest.raises(InputError, match="is the same file as"):
        sources("a.jsonl", "[ab].jsonl")


def test_files_can_be_counted_without_a_tokenizer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chat("Hi", "Hello."), {"x": 1})
    report = scan_files([path], DataOptions(skip_bad=True))
    assert (report.records, report.bad.count, report.files[0].format, report.samples) == (2, 1, "messages", 0)
