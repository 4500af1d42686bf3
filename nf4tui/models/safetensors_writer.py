"""Writes a safetensors file, tensor by tensor, as the same bytes for the same content.

The header comes first, from shapes alone, so that a model larger than the memory can be written as it is
made. (The safetensors library writes metadata in a random order, and its NumPy side has no bfloat16.)
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I32": 4, "I64": 8}
_CHUNK = 2**24  # bytes handed to the file at a time


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype: safetensors' name of it; BF16 is held as uint16 bits."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _SIZES[self.dtype]


def write_safetensors(
    path: Path,
    specs: Mapping[str, TensorSpec],
    tensors: Iterable[NDArray[Any]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a new file and fsyncs it. `tensors` are those of `specs`, in order, one at a time.

    Raises ValueError if a tensor has not the bytes that its spec says, FileExistsError, OSError.
    """
    with path.open("xb") as file:
        file.write(_header(specs, metadata or {"format": "pt"}))
        for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
            data = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
            if len(data) != spec.nbytes:
                raise ValueError(f"{name}: {len(data)} bytes for {spec}")
            for start in range(0, len(data), _CHUNK):
                file.write(data[start : start + _CHUNK])
        file.flush()
        os.fsync(file.fileno())


def _header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, spec in specs.items():
        end = offset + spec.nbytes
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
