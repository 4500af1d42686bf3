"""What a line may be, and the one error line for everything else."""

import codecs
import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nf4tui.data import strict_json
from nf4tui.data.jsonl import MAX_LINE, BadLineError, JsonlFile, decode_line
from nf4tui.errors import InputError


def write(folder: Path, data: bytes) -> str:
    path = folder / "data.jsonl"
    path.write_bytes(data)
    return str(path)


def read(path: str) -> list[object]:
    return [decode_line(line)[1] for line in JsonlFile(path)]


def refusal(folder: Path, data: bytes) -> str:
    """The error line without the folder; it must be one line."""
    with pytest.raises(InputError) as caught:
        read(write(folder, data))
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1}\r\n{"a": 2}\r\n',
        b'{"a": 1}\n{"a": 2}',
        b'\n\n{"a": 1}\n  \t\r\n{"a": 2}\n\n',
        codecs.BOM_UTF8 + b'{"a": 1}\n{"a": 2}\n',
        b' {"a": 1} \n\t{"a": 2}',
    ],
)
def test_line_ends_blank_lines_and_a_leading_mark_are_accepted(tmp_path: Path, data: bytes) -> None:
    file = JsonlFile(write(tmp_path, data))
    assert [decode_line(line)[1] for line in file] == [{"a": 1}, {"a": 2}]
    assert file.bom == data.startswith(codecs.BOM_UTF8)


def test_lines_keep_their_number_over_blank_ones(tmp_path: Path) -> None:
    assert [line.number for line in JsonlFile(write(tmp_path, b'\n{"a": 1}\n\n\n{"a": 2}'))] == [2, 5]


def test_line_separators_of_unicode_do_not_split_a_record(tmp_path: Path) -> None:
    value = {"a": "x\u2028y\u2029z\u0085v\x7f\ufeff"}
    raw = json.dumps(value, ensure_ascii=False).encode()
    assert read(write(tmp_path, raw + b"\n" + raw)) == [value, value]


def test_vertical_tab_and_form_feed_are_accepted_as_escapes_and_never_split(tmp_path: Path) -> None:
    assert read(write(tmp_path, b'{"a": "x\\u000by\\u000c"}')) == [{"a": "x\x0by\x0c"}]
    message = refusal(tmp_path, b'{"a": "x\x0by"}\n{"a": 2}\n')
    assert message.startswith("data.jsonl:1:9: not valid JSON (Invalid control character")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [(f"utf-{bits}{order}", f"UTF-{bits}") for bits in (16, 32) for order in ("", "-le", "-be")],
)
def test_other_unicode_encodings_are_named(tmp_path: Path, encoding: str, name: str) -> None:
    message = refusal(tmp_path, '{"a": "x"}\n'.encode(encoding))
    assert message.startswith(f"data.jsonl:1:1: the file is {name}")


@pytest.mark.parametrize(
    ("data", "name"),
    [(gzip.compress(b'{"a": 1}\n'), "gzip"), (b"PK\x03\x04\x14\0", "ZIP"), (b"PAR1\x15", "Parquet")],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, name: str) -> None:
    assert refusal(tmp_path, data).startswith(f"data.jsonl:1:1: the file is {name}, not UTF-8 text;")


REFUSED = [
    (b'{"a": "caf\xe9"}\n', "1:11: byte 0xE9 is not UTF-8 (the line looks like Latin-1"),
    ('{"é": "'.encode() + b'\xff"}\n', "1:8: byte 0xFF is not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}\n', "1:8: a UTF-16 surrogate written as UTF-8"),
    (b'{"a": "\\ud800"}\n', "1:7: a lone surrogate \\ud800"),
    (b'{"a": {"\\udc00x": 1}}\n', "1:8: a lone surrogate \\udc00"),
    (b'{"a": "\\ud800\\ud83d\\ude00"}\n', "1:7: a lone surrogate \\ud800"),
    (b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n', "2:1: a byte order mark inside the file"),
    (b'{"a": \xef\xbb\xbf1}\n', "1:7: a byte order mark inside the file"),
    (b'{"a": NaN}\n', "1:7: NaN is not JSON"),
    (b'{"a": [1, -Infinity]}\n', "1:11: -Infinity is not JSON"),
    (b'{"a": [1, {"b": 1e999}]}\n', "1:17: the number 1e999 is too large"),
    (b'{"a": ' + b"9" * 5000 + b"}\n", "1:7: a number of 5000 characters"),
    (b'{"a": 1.' + b"9" * 5000 + b"}\n", "1:7: a number of 5002 characters"),
    (b'{"a": 1, "b": 2, "a": 3}\n', '1:18: the key "a" is given twice'),
    (b'{"a": {"x": 1, "\\u0078": 3}}\n', '1:16: the key "\\u0078" is given twice'),
    (b"[" * 100_000 + b"\n", "1:101: nested deeper than 100 levels"),
    (b'{"a":' * 101 + b"1" + b"}" * 101 + b"\n", "1:501: nested deeper than 100 levels"),
    (b'{"a": 1}\n{"a": 1}{"a": 2}\n', "2:9: more than one JSON value on the line"),
    (b'{"a": 1} x\n', "1:10: more than one JSON value on the line"),
    (b'[{"a": 1}]\n', "1:1: the line is an array, not an object"),
    (b'"a"\n', "1:1: the line is a string"),
    (b"5\n", "1:1: the line is a number"),
    (b"null\n", "1:1: the line is null"),
    (b"true\n", "1:1: the line is a true or false"),
    (b'{"a" 1}\n', "1:6: not valid JSON (Expecting ':' delimiter)"),
    (b"{'a': 1}\n", "1:2: not valid JSON"),
    (b'{\n  "a": 1\n}\n', "1:2: the JSON object is not complete"),
    (b'{"a": "x\n', "1:7: not valid JSON (Unterminated string"),
]


@pytest.mark.parametrize(("data", "expected"), REFUSED, ids=[expected[:30] for _, expected in REFUSED])
def test_what_is_not_strict_json_is_refused_with_its_place(
    tmp_path: Path, data: bytes, expected: str
) -> None:
    assert refusal(tmp_path, data).startswith(f"data.jsonl:{expected}")


@pytest.mark.parametrize(
    "data", [b'{"a": "x"', b'{"a": "x', b'{"a": "caf\xc3', b"{", b'{"a": tru', b'{"a": "\\']
)
def test_a_last_line_that_is_still_being_written_is_torn(tmp_path: Path, data: bytes) -> None:
    message = refusal(tmp_path, b'{"a": 1}\n' + data)
    assert message.startswith("data.jsonl:2:") and "the last line is torn" in message


def test_a_torn_line_cannot_be_stepped_over(tmp_path: Path) -> None:
    with pytest.raises(InputError) as torn:
        read(write(tmp_path, b'{"a": 1'))
    assert not isinstance(torn.value, BadLineError)
    with pytest.raises(BadLineError):
        read(write(tmp_path, b'{"a": 1\n'))


def test_depth_100_and_brackets_in_strings_are_accepted(tmp_path: Path) -> None:
    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    text = b'{"a": "' + b"[{" * 5000 + b'\\"' * 10 + b'"}'
    assert len(read(write(tmp_path, deep + b"\n" + text))) == 2


def test_a_line_over_the_limit_is_refused_and_one_at_it_is_not(tmp_path: Path) -> None:
    text = b'{"a": "' + b"x" * (MAX_LINE - 9) + b'"}'
    assert len(read(write(tmp_path, text + b"\r\n"))) == 1
    message = refusal(tmp_path, b'{"a": 1}\n' + text + b" \n")
    assert message.startswith("data.jsonl:2:1: a line of more than 16 MiB")


def test_a_string_that_never_ends_is_refused_in_time(tmp_path: Path) -> None:
    """Linear in its length: quadratic matching would take hours."""
    start = b'{"a": [' + b"{}," * 101
    message = refusal(tmp_path, start + b'"' + b'\\"' * 2_000_000 + b"\n")
    assert message.startswith(f"data.jsonl:1:{len(start) + 1}: not valid JSON (Unterminated string")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, expected in (
        ("fifo", "not a regular file; "),
        (".", "not a regular file but a folder"),
        ("missing", "no such file"),
        ("link", "no such file"),
        ("a\0b", "not a file name"),
        ("x" * 300, "cannot be read"),
    ):
        with pytest.raises(InputError, match=expected) as caught:
            list(JsonlFile(f"{tmp_path}/{name}"))
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a": 1}\n')
    Path(path).chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        read(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=15,
)


@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
@settings(max_examples=200, deadline=None)
def test_valid_json_is_read_as_python_reads_it(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert strict_json.decode(text) == value


def places(value: object, path: strict_json.Path = ()) -> list[tuple[strict_json.Path, object]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(path, value), *(place for key, item in items for place in places(item, (*path, key)))]


@given(value=VALUES)
@settings(max_examples=200, deadline=None)
def test_the_column_of_a_path_is_where_its_value_starts(value: object) -> None:
    text = json.dumps(value)
    for path, expected in places(value):
        start = strict_json.column_of(text, path) - 1
        assert json.JSONDecoder().raw_decode(text, start)[0] == expected


def test_the_column_of_a_missing_value_is_its_containers() -> None:
    text = '{"x": 1, "messages": [{"role": "user"}]}'
    assert text[strict_json.column_of(text, ("messages", 0, "content")) - 1 :].startswith('{"role"')
    assert strict_json.column_of(text, ("tools",)) == 1
