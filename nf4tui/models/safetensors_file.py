"""A strict reader of safetensors files (format: 8-byte little-endian header length, JSON header, data).

Our own because checkpoints come from strangers: the safetensors library (0.8) accepts duplicate names and
leading blanks, and maps the file, so that a file truncated while it is read kills the process (SIGBUS).
Here the file is read, never mapped, and every byte of it must belong to exactly one tensor.

Memory: the header, and whatever `read` returns.
"""

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.errors import InputError
from nf4tui.quoting import quoted
from nf4tui.small_files import open_regular

MAX_HEADER_BYTES = 100 * 2**20  # the library's own limit
_PICKLE_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")

# NumPy has no bfloat16: its bits are returned as uint16, told apart by TensorInfo.dtype.
_DTYPES: Mapping[str, type[np.generic]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "BOOL": np.bool_,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """dtype: safetensors' name (`BF16`, `F32`, `U8`, ...). offset: of the first byte, in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The verified header of one file. metadata: its `__metadata__`."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """The tensor, or a contiguous range of its first dimension, in its stored dtype (bfloat16 as
        uint16 bits). Raises InputError if the file has become shorter."""
        info = self.tensors[name]
        dtype = np.dtype(_DTYPES[info.dtype])
        shape, offset = info.shape, info.offset
        if rows is not None:
            start, stop, _ = rows.indices(shape[0])
            offset += start * (info.nbytes // max(1, shape[0]))
            shape = (stop - start, *shape[1:])
        out = np.empty(shape, dtype=dtype)
        view = out.reshape(-1).view(np.uint8).data
        try:
            with open_regular(self.path) as file:
                file.seek(offset)
                filled = 0
                while filled < out.nbytes:
                    count = file.readinto(view[filled:])
                    if not count:
                        raise InputError(
                            f"{self.path}: truncated while reading tensor {quoted(name)}; "
                            "copy or download it again"
                        )
                    filled += count
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        return out


def open_safetensors(path: Path) -> SafetensorsFile:
    """Reads and checks the header. Raises InputError naming the file and what is wrong with it."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise InputError(f"{path}: {len(prefix)} bytes long, too short for a safetensors file")
            (length,) = struct.unpack("<Q", prefix)
            fits = length <= min(MAX_HEADER_BYTES, size - 8)
            header = file.read(length) if fits else b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    # A header of 640 bytes also begins with a pickle's 80 02, so the magic alone says nothing.
    if prefix.startswith(_PICKLE_MAGIC) and not header.startswith(b"{"):
        raise InputError(
            f"{path}: a pickle or zip archive, which can run code when opened, so it is refused; "
            "convert it with transformers' save_pretrained(safe_serialization=True)"
        )
    if not fits:
        raise InputError(
            f"{path}: its header claims {length} bytes; the file has {size} "
            "(truncated, or not a safetensors file)"
        )
    entries = _parse_header(path, header)
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InputError(f"{path}: its __metadata__ must map names to text; the file is damaged")
    return SafetensorsFile(path, _check_layout(path, entries, 8 + length, size), metadata)


def _parse_header(path: Path, header: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise InputError(f"{path}: the name {quoted(key)} occurs twice in its header")
            seen[key] = value
        return seen

    if not header.startswith(b"{"):
        raise InputError(f"{path}: not a safetensors file (its header does not begin with '{{')")
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: its safetensors header is not valid JSON ({type(error).__name__})"
        ) from error
    if not isinstance(entries, dict):
        raise InputError(f"{path}: its safetensors header is not a JSON object")
    return entries


def _check_layout(
    path: Path, entries: dict[str, Any], data_start: int, file_size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        tensors[name] = _tensor_info(path, name, entry, data_start)
    end = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != end:
            kind = "overlaps another tensor" if info.offset < end else "leaves a gap before it"
            raise InputError(f"{path}: tensor {quoted(name)} {kind}; the file is damaged")
        end = info.offset + info.nbytes
    if end > file_size:
        raise InputError(
            f"{path}: truncated: its header describes {end} bytes and the file has {file_size}; "
            "copy or download it again"
        )
    if end < file_size:
        raise InputError(f"{path}: {file_size - end} bytes after the last tensor; the file is damaged")
    return tensors


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _tensor_info(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(
            f"{path}: tensor {quoted(name)} must have dtype, shape and data_offsets, and only those"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InputError(f"{path}: tensor {quoted(name)} has the unsupported dtype {quoted(dtype)}")
    if not isinstance(shape, list) or len(shape) > 8 or not all(_is_count(size) for size in shape):
        raise InputError(f"{path}: tensor {quoted(name)} has an invalid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(value) for value in offsets):
        raise InputError(f"{path}: tensor {quoted(name)} has invalid data_offsets")
    nbytes = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise InputError(
            f"{path}: tensor {quoted(name)}: {dtype} {quoted(shape)} takes {nbytes} bytes, its data_offsets span "
            f"{offsets[1] - offsets[0]}"
        )
    return TensorInfo(dtype, tuple(shape), data_start + offsets[0], nbytes)
