"""What is in a safetensors file is read exactly; a file with anything else in it is refused by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nf4tui.errors import InputError
from nf4tui.models.safetensors_file import MAX_HEADER_BYTES, open_safetensors

Refused = Callable[..., str]
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_of(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"])
def test_every_dtype_that_the_library_writes_is_read_back_exactly(path: Path, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    path.write_bytes(safetensors.numpy.save({"a": array, "scalar": np.array(array[0, 0])}))
    file = open_safetensors(path)
    assert file.read("a").dtype == array.dtype and np.array_equal(file.read("a"), array)
    assert np.array_equal(file.read("a", slice(1, 3)), array[1:3])
    assert file.read("scalar").shape == ()


def test_a_tensor_without_values_and_a_file_without_tensors_are_read(path: Path) -> None:
    path.write_bytes(safetensors.numpy.save({"none": np.empty((0, 4), np.float32)}))
    assert open_safetensors(path).read("none").shape == (0, 4)
    assert open_safetensors(path).read("none", slice(0, 5)).shape == (0, 4)
    path.write_bytes(file_of({}))
    assert open_safetensors(path).tensors == {}


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x4B50])
def test_a_header_whose_length_reads_like_a_pickles_magic_is_a_header(path: Path, length: int) -> None:
    text = json.dumps({"a": F32}).encode()
    path.write_bytes(file_of(text + b" " * (length - len(text)), bytes(8)))
    assert path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")
    assert list(open_safetensors(path).tensors) == ["a"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(100),
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00" + bytes(100),
        b"\x80\x02",
        b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(100),
    ],
    ids=["torch", "protocol 4", "short", "zip"],
)
def test_a_pickle_is_refused_whatever_its_name(path: Path, refused: Refused, data: bytes) -> None:
    path.write_bytes(data)
    if len(data) < 8:
        refused(open_safetensors, path, says=(str(path), "too short"))
    else:
        refused(
            open_safetensors, path, says=(str(path), "pickle", "save_pretrained(safe_serialization=True)")
        )


def test_a_repeated_name_is_refused(path: Path, refused: Refused) -> None:
    entry = json.dumps(F32)
    path.write_bytes(file_of(f'{{"a": {entry}, "a": {entry}}}'.encode(), bytes(8)))
    refused(open_safetensors, path, says=(str(path), "'a'", "twice"))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b" " + json.dumps({"a": F32}).encode(), "does not begin with '{'"),
        (b"", "does not begin with '{'"),
        (b"[1]", "does not begin with '{'"),
        (b"{", "not valid JSON"),
        (b'{"a": \xff}', "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": 1}', "'a' must have dtype, shape and data_offsets"),
    ],
    ids=["blank", "empty", "array", "torn", "not UTF-8", "nested", "digits", "entry"],
)
def test_a_header_that_is_not_one_is_refused(path: Path, refused: Refused, header: bytes, says: str) -> None:
    path.write_bytes(file_of(header, bytes(8)))
    refused(open_safetensors, path, says=(str(path), says))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "F8_E4M3"}, "unsupported dtype 'F8_E4M3'"),
        ({"dtype": ["F32"]}, "unsupported dtype"),
        ({"shape": [2.0]}, "invalid shape"),
        ({"shape": [True, 2]}, "invalid shape"),
        ({"shape": [-1, -2]}, "invalid shape"),
        ({"shape": [2**64]}, "invalid shape"),
        ({"shape": "2"}, "invalid shape"),
        ({"shape": [1] * 9}, "invalid shape"),
        ({"shape": [2**62] * 8}, "data_offsets span 8"),
        ({"shape": [3]}, "takes 12 bytes, its data_offsets span 8"),
        ({"data_offsets": [8, 0]}, "data_offsets span -8"),
        ({"data_offsets": [0]}, "invalid data_offsets"),
        ({"data_offsets": [0, "8"]}, "invalid data_offsets"),
        ({"data_offsets": [-8, 0]}, "invalid data_offsets"),
        ({"extra": 1}, "and only those"),
        ({"data_offsets": [4, 12]}, "leaves a gap before it"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(
    path: Path, refused: Refused, change: dict[str, Any], says: str
) -> None:
    path.write_bytes(file_of({"some.weight": F32 | change}, bytes(12)))
    refused(open_safetensors, path, says=(str(path), "'some.weight'", says))


def test_overlap_gap_trailing_bytes_and_truncation_are_refused(path: Path, refused: Refused) -> None:
    header = {"a": F32, "b": F32 | {"data_offsets": [4, 12]}}
    path.write_bytes(file_of(header, bytes(12)))
    refused(open_safetensors, path, says=("'b' overlaps another tensor",))
    path.write_bytes(file_of({"a": F32, "b": F32 | {"data_offsets": [9, 17]}}, bytes(17)))
    refused(open_safetensors, path, says=("'b' leaves a gap",))
    path.write_bytes(file_of({"a": F32}, bytes(11)))
    refused(open_safetensors, path, says=("3 bytes after the last tensor",))
    path.write_bytes(file_of({"a": F32}, bytes(7)))
    refused(open_safetensors, path, says=("truncated", "download it again"))


def test_a_header_larger_than_the_file_or_the_limit_is_refused(path: Path, refused: Refused) -> None:
    for claim in (2**63, 2**64 - 1, 100):
        path.write_bytes(claim.to_bytes(8, "little") + b"{}")
        refused(open_safetensors, path, says=(f"claims {claim} bytes; the file has 10",))
    with path.open("wb") as file:  # sparse: takes no room
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(2**31)
    refused(open_safetensors, path, says=(f"claims {MAX_HEADER_BYTES + 1} bytes",))


@pytest.mark.parametrize("keep", [0, 7, 12, 60])
def test_a_torn_file_is_refused(path: Path, refused: Refused, keep: int) -> None:
    path.write_bytes(file_of({"a": F32}, bytes(8))[:keep])
    refused(open_safetensors, path, says=(str(path),))


def test_a_file_that_shrinks_while_it_is_read_is_refused(path: Path, refused: Refused) -> None:
    path.write_bytes(safetensors.numpy.save({"a": np.zeros(5000, np.float32)}))
    file = open_safetensors(path)
    os.truncate(path, 9000)
    refused(file.read, "a", says=(str(path), "truncated while reading tensor 'a'", "download it again"))
    path.unlink()
    refused(file.read, "a", says=(str(path), "No such file"))


def test_what_is_not_a_regular_file_is_refused_without_waiting(path: Path, refused: Refused) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    os.mkfifo(path)
    refused(open_safetensors, path, says=(str(path), "not a regular file"))
    path.unlink()
    path.mkdir()
    refused(open_safetensors, path, says=(str(path), "not a regular file"))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    refused(open_safetensors, path / "absent", says=("No such file",))
    refused(open_safetensors, Path("/dev/zero"), says=("not a regular file",))


def test_a_name_of_a_megabyte_is_quoted_short(path: Path, refused: Refused) -> None:
    path.write_bytes(file_of({"x" * 2**20: 1}))
    assert len(refused(open_safetensors, path)) < 500 + len(str(path))


def opens_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        file = open_safetensors(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for name in file.tensors:
        file.read(name)


_LENIENT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_LENIENT
@given(header=st.binary(max_size=200), data=st.binary(max_size=40))
def test_random_bytes_raise_nothing_else(path: Path, header: bytes, data: bytes) -> None:
    opens_or_refuses(path, header)
    opens_or_refuses(path, file_of(b"{" + header, data))


@_LENIENT
@given(
    places=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 400),
)
def test_mutated_bytes_raise_nothing_else(path: Path, places: list[tuple[int, int]], cut: int) -> None:
    whole = safetensors.numpy.save({"a": np.ones((3, 5), np.float32), "b": np.ones(7, np.uint8)})
    data = bytearray(whole)
    for place, value in places:
        data[place % len(data)] = value
    opens_or_refuses(path, bytes(data))
    opens_or_refuses(path, bytes(data[: len(data) - cut % len(data)]))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@_LENIENT
@given(
    entries=st.dictionaries(
        st.text(max_size=6) | st.just("__metadata__"),
        _JSON
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "BF16"]) | _JSON,
                "shape": st.lists(st.integers(-1, 4), max_size=3) | _JSON,
                "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | _JSON,
            }
        ),
        max_size=3,
    )
)
def test_random_headers_raise_nothing_else(path: Path, entries: dict[str, Any]) -> None:
    opens_or_refuses(path, file_of(json.dumps(entries).encode(), bytes(32)))
