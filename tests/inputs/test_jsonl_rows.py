"""JSONL as people and attackers write it, through the commands that read it."""

import codecs
import gzip
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.data.records import RecordFile

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]

USER, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
GOOD = json.dumps({"messages": [USER, HELLO]}).encode()


def counted(nf4tui: Run, path: Path, *more: str | Path) -> dict[str, Any]:
    """What `data --json` says of a file that it accepts."""
    found = nf4tui("data", path, "--json", *more)
    assert (found.code, found.err) == (0, ""), found
    report: dict[str, Any] = json.loads(found.out)
    return report


# A byte order mark, line ends, blank lines.


def test_a_byte_order_mark_at_the_start_is_accepted_and_said_once(
    data: Path, model: Path, nf4tui: Run, train: Run
) -> None:
    plain = counted(nf4tui, data, "--model", model)
    data.write_bytes(codecs.BOM_UTF8 + data.read_bytes())
    marked = counted(nf4tui, data, "--model", model)
    assert (marked["samples"], marked["tokens"]) == (plain["samples"], plain["tokens"])
    assert [file["byte_order_mark"] for file in plain["files"] + marked["files"]] == [False, True]
    for words in (["data", data], ["data", data, "--model", model], train()):
        found = nf4tui(*words)
        assert found.code == 0 and found.out.count("byte order mark") == 1, found
    assert (data.parent / "run/log.txt").read_text(encoding="utf-8").count("byte order mark") == 1


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (GOOD + b"\n" + codecs.BOM_UTF8 + GOOD + b"\n", "2:1"),
        (codecs.BOM_UTF8 * 2 + GOOD + b"\n", "1:1"),
        (GOOD.replace(b": [", b": " + codecs.BOM_UTF8 + b"[") + b"\n", "1:14"),
        (GOOD + codecs.BOM_UTF8 + b"\n", "1:"),
    ],
    ids=["second line", "twice", "inside", "end of line"],
)
def test_a_byte_order_mark_elsewhere_is_refused(
    data: Path, refused: Run, train: Run, content: bytes, where: str
) -> None:
    data.write_bytes(content)
    refused(*train(), says=(f"data.jsonl:{where}",))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.removesuffix(b"\n"),
        lambda data: data.removesuffix(b"\n").replace(b"\n", b"\r\n"),
        lambda data: b"\n\r\n \t\n" + data.replace(b"\n", b"\n\n") + b"\n  \r\n",
    ],
    ids=["CRLF", "no last newline", "CRLF and no last newline", "blank lines"],
)
def test_line_ends_and_blank_lines_change_nothing(
    data: Path, model: Path, nf4tui: Run, change: Callable[[bytes], bytes]
) -> None:
    plain = counted(nf4tui, data, "--model", model)
    data.write_bytes(change(data.read_bytes()))
    changed = counted(nf4tui, data, "--model", model)
    for name in ("records", "samples", "tokens", "supervised_tokens", "lengths"):
        assert changed[name] == plain[name]


def test_three_records_stay_three_whatever_separators_their_text_holds(data: Path, nf4tui: Run) -> None:
    """NEL and the separators of Unicode as they are; VT, FF and FS as JSON wants them, escaped."""
    text = "a\u2028b\u2029c\u0085d\u000be\u000cf\u001cg"
    record = json.dumps({"prompt": text, "completion": text}, ensure_ascii=False)
    data.write_bytes((record.encode() + b"\n") * 3)
    assert len(data.read_text(encoding="utf-8").splitlines()) > 6
    assert counted(nf4tui, data)["records"] == 3
    assert [[message.content for message in record.messages] for record in RecordFile(str(data))] == [
        [text] * 2
    ] * 3


# Encodings.

ENCODINGS = [
    (f"utf-{bits}{order}", f"1:1: the file is UTF-{bits}")
    for bits in (16, 32)
    for order in ("", "-le", "-be")
]


@pytest.mark.parametrize(("encoding", "says"), ENCODINGS)
def test_utf_16_and_32_are_refused_by_name(
    data: Path, refused: Run, train: Run, encoding: str, says: str
) -> None:
    data.write_bytes(data.read_text(encoding="utf-8").encode(encoding))
    refused(*train(), says=(f"data.jsonl:{says}", "UTF-8"))
    refused(*train("--skip-bad"), says=(f"data.jsonl:{says}",))


@pytest.mark.parametrize(
    ("pack", "says"),
    [
        (gzip.compress, "gzip"),
        (__import__("bz2").compress, "bzip2"),
        (__import__("lzma").compress, "xz"),
        (lambda data: b"\x28\xb5\x2f\xfd" + data, "Zstandard"),
        (lambda data: b"PK\x03\x04" + data, "ZIP"),
        (lambda data: b"PAR1" + data, "Parquet"),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "zip", "parquet"],
)
def test_compressed_files_are_refused_by_name(
    data: Path, refused: Run, train: Run, pack: Callable[[bytes], bytes], says: str
) -> None:
    data.write_bytes(pack(data.read_bytes()))
    refused(*train(), says=(f"data.jsonl:1:1: the file is {says}, not UTF-8 text",))


def test_a_pickle_is_refused_unopened(data: Path, refused: Run, train: Run) -> None:
    data.write_bytes(
        b"\x80\x04\x95\x17\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x05mkdir\x94\x93\x94"
    )
    refused(*train(), says=("data.jsonl:1:1: byte 0x80 is not UTF-8",))


def messages_with(text: bytes) -> bytes:
    """A record whose question holds these bytes, from the line's column 40 on."""
    return b'{"messages":[{"role":"user","content":"' + text + b'"},{"role":"assistant","content":"x"}]}'


NOT_STRICT = [
    ("Latin-1", messages_with("café".encode("latin-1")), "2:43: byte 0xE9 is not UTF-8 (the line looks like Latin-1"),
    ("lone byte", messages_with(b"\x80"), "2:40: byte 0x80 is not UTF-8"),
    ("overlong", messages_with(b"\xc0\x80"), "2:40: byte 0xC0 is not UTF-8"),
    ("CESU-8", messages_with(b"\xed\xa0\x80"), "2:40: a UTF-16 surrogate written as UTF-8 (CESU-8)"),
    ("high surrogate", messages_with(b"\\ud800"), "2:39: a lone surrogate \\ud800"),
    ("low surrogate", messages_with(b"\\udc00"), "2:39: a lone surrogate \\udc00"),
    ("pair in reverse", messages_with(b"\\ude00\\ud83d"), "2:39: a lone surrogate \\ude00"),
    ("surrogate in a key", b'{"\\ud800": 1, ' + GOOD[1:], "2:2: a lone surrogate \\ud800"),
    ("NaN", b'{"x": NaN, ' + GOOD[1:], "2:7: NaN is not JSON"),
    ("Infinity", b'{"x": Infinity, ' + GOOD[1:], "2:7: Infinity is not JSON"),
    ("-Infinity", b'{"x": [-Infinity], ' + GOOD[1:], "2:8: -Infinity is not JSON"),
    ("1e999", b'{"x": 1e999, ' + GOOD[1:], "2:7: the number 1e999 is too large"),
    ("-1e999", b'{"x": -1e999, ' + GOOD[1:], "2:7: the number -1e999 is too large"),
    ("350 digits", b'{"x": ' + b"9" * 350 + b", " + GOOD[1:], "2:7: the number 9999999999"),
    ("5,000 digits", b'{"x": ' + b"9" * 5000 + b", " + GOOD[1:], "2:7: a number of 5000 characters"),
    ("key twice", b'{"messages": 1, ' + GOOD[1:], '2:17: the key "messages" is given twice'),
    ("key twice inside", messages_with(b'x","content":"y'), '2:43: the key "content" is given twice'),
    ("key twice by escape", b'{"a": 1, "\\u0061": 2, ' + GOOD[1:], '2:10: the key "\\u0061" is given twice'),
    ("brackets", b'{"x": ' + b"[" * 100_000, "2:106: nested deeper than 100 levels"),
    ("depth 101", b'{"x": ' + b"[" * 100 + b"]" * 100 + b", " + GOOD[1:], "2:106: nested deeper than 100"),
    ("two objects", GOOD + b" " + GOOD, f"2:{len(GOOD) + 2}: more than one JSON value on the line"),
    ("NUL", messages_with(b"\0"), "2:40: not valid JSON"),
    ("array as root", b"[" + GOOD + b"]", "2:1: the line is an array, not an object"),
    ("no JSON", b"Hello", "2:1: not valid JSON"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"), [row[1:] for row in NOT_STRICT], ids=[row[0] for row in NOT_STRICT]
)
def test_what_is_not_strict_json_is_refused_with_line_and_column(
    data: Path, refused: Run, train: Run, line: bytes, says: str
) -> None:
    data.write_bytes(GOOD + b"\n" + line + b"\n")
    refused(*train(), says=(f"data.jsonl:{says}",))


def test_what_lies_on_the_strict_side_of_each_limit_is_accepted(data: Path, nf4tui: Run) -> None:
    """Depth 100, a double's largest, pairs of surrogates, brackets in text."""
    lines = [
        b'{"x": ' + b"[" * 99 + b"]" * 99 + b", " + GOOD[1:],
        b'{"x": 1.7976931348623157e308, "y": 1e-999, "z": ' + b"1" * 308 + b", " + GOOD[1:],
        messages_with(b"\\ud83d\\ude00" + b"[" * 200),
    ]
    data.write_bytes(b"\n".join(lines))
    assert counted(nf4tui, data)["records"] == 3


def test_a_line_of_100_mb_is_refused_in_little_time_and_memory(data: Path, nf4tui: Run, train: Run) -> None:
    with data.open("r+b") as file:
        file.seek(0, 2)
        file.write(b'{"messages": "')
        file.truncate(100 * 2**20)  # the rest reads as NUL, and takes no room
    began = time.monotonic()
    tracemalloc.start()
    found = nf4tui(*train())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.code == 2 and "data.jsonl:5:1: a line of more than 16 MiB" in found.err
    assert not (data.parent / "run").exists()
    assert time.monotonic() - began < 10
    assert peak < 80 * 2**20
