"""Tiny checkpoints, whole or spoiled in one place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.errors import InputError
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
SHARD_BYTES = 20_000

Refused = Callable[..., str]
Edit = Callable[..., None]


def config_of(*, tied: bool = True, **changes: Any) -> Qwen2Config:
    """The smallest model with grouped heads and two layers."""
    fields: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
    }
    return Qwen2Config(**fields | changes)


@pytest.fixture
def tiny() -> Qwen2Config:
    return config_of()


@pytest.fixture
def untied() -> Qwen2Config:
    return config_of(tied=False)


@pytest.fixture
def model(tmp_path: Path, tiny: Qwen2Config) -> Path:
    """A directory with config.json and model.safetensors, tied."""
    write_random_checkpoint(tmp_path / "model", tiny)
    return tmp_path / "model"


@pytest.fixture
def untied_model(tmp_path: Path, untied: Qwen2Config) -> Path:
    write_random_checkpoint(tmp_path / "untied", untied)
    return tmp_path / "untied"


@pytest.fixture
def sharded(tmp_path: Path, tiny: Qwen2Config) -> Path:
    """The same model in shards with an index."""
    write_random_checkpoint(tmp_path / "sharded", tiny, shard_bytes=SHARD_BYTES)
    return tmp_path / "sharded"


@pytest.fixture
def refused() -> Refused:
    """Calls with the arguments and returns the message of the InputError, which must be one short line that
    holds every text of `says`."""

    def call(function: Callable[..., object], *arguments: object, says: tuple[str, ...] = ()) -> str:
        with pytest.raises(InputError) as caught:
            function(*arguments)
        message = str(caught.value)
        assert "\n" not in message
        assert len(message) < 4000
        for text in says:
            assert text in message, message
        return message

    return call


_ABSENT = object()


@pytest.fixture
def edit() -> Edit:
    """Changes fields of a JSON file; the value `edit.absent` removes one."""

    def call(path: Path, **fields: Any) -> None:
        table = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({name: value for name, value in table.items() if value is not _ABSENT}))

    return call


@pytest.fixture
def absent() -> object:
    return _ABSENT


def read_raw(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """name -> (dtype, shape, bytes) of a safetensors file, read by nothing of nf4tui."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[8 + length :][entry["data_offsets"][0] : entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def write_raw(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """The reverse of read_raw."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


Change = Callable[[dict[str, tuple[str, list[int], bytes]]], None]


@pytest.fixture
def rewrite() -> Callable[[Path, Change], None]:
    """Applies a change to the tensors of a safetensors file."""

    def call(path: Path, change: Change) -> None:
        tensors = read_raw(path)
        change(tensors)
        write_raw(path, tensors)

    return call


@pytest.fixture
def golden() -> Path:
    return GOLDEN


@pytest.fixture
def raw_tensors() -> Callable[[Path], dict[str, tuple[str, list[int], bytes]]]:
    return read_raw


@pytest.fixture
def make_config() -> Callable[..., Qwen2Config]:
    return config_of
