"""Model directories from strangers, as `train --model` meets them: refused in one line by name, or right."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.models.shards import INDEX

Run = Callable[..., Any]
NORM = "model.norm.weight"


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


@pytest.fixture
def weights(model: Path) -> Path:
    return model / "model.safetensors"


def test_a_directory_that_nothing_is_wrong_with_trains(
    model: Path, sharded: Path, nf4tui: Run, train: Run
) -> None:
    """Else the refusals below would say nothing."""
    for number, folder in enumerate((model, sharded)):
        assert nf4tui(*train(model=folder, out=f"run{number}")).code == 0


# The index.


def weight_map(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"]
    return found


@pytest.mark.parametrize(
    "name",
    [
        "../model/model.safetensors",
        "/etc/passwd",
        "/dev/stdin",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "model\0.safetensors",
        "model\n.safetensors",
        "..",
        "",
        "weights.bin",
        "x" * 300 + ".safetensors",
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_that_names_anything_but_a_plain_file_is_refused(
    sharded: Path, refused: Run, train: Run, name: object
) -> None:
    edit(sharded / INDEX, weight_map=weight_map(sharded) | {NORM: name})
    line = refused(*train(model=sharded), says=(INDEX,))
    assert ("must be a plain file name in this directory" in line) != (name == "model\n.safetensors")
    assert ("is missing" in line) == (name == "model\n.safetensors")


def make_link_out(path: Path) -> None:
    outside = path.parent.parent / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def remove(path: Path) -> None:
    path.unlink()


PLACES = [
    (make_link_out, "a link that leaves the model directory"),
    (make_device, "a link that leaves the model directory"),
    (make_folder, "not a regular file"),
    (make_fifo, "not a regular file"),
    (make_loop, "is missing"),
    (remove, "is missing"),
]


@pytest.mark.parametrize(("change", "says"), PLACES, ids=[change.__name__ for change, _ in PLACES])
def test_a_shard_that_is_no_file_of_the_directory_is_refused(
    sharded: Path, refused: Run, train: Run, change: Callable[[Path], None], says: str
) -> None:
    name = weight_map(sharded)[NORM]
    change(sharded / name)
    refused(*train(model=sharded), says=(name, says))


@pytest.mark.parametrize(("change", "says"), PLACES[:4], ids=[change.__name__ for change, _ in PLACES[:4]])
def test_a_single_file_that_is_no_file_of_the_directory_is_refused(
    weights: Path, refused: Run, train: Run, change: Callable[[Path], None], says: str
) -> None:
    change(weights)
    refused(*train(), says=(says,))


def test_a_tensor_in_another_shard_than_the_index_says_is_refused_by_name(
    sharded: Path, refused: Run, train: Run
) -> None:
    places = weight_map(sharded)
    moved = [name for name in sorted(places) if places[name] != places[NORM]][:12]
    edit(sharded / INDEX, weight_map=places | dict.fromkeys(moved, places[NORM]))
    line = refused(*train(model=sharded), says=(f"{moved[0]} (not in {places[NORM]})", "and 2 more"))
    assert (
        all(name in line for name in moved[:10] if list(places).index(name) < 10)
        and line.count("(not in") == 10
    )


# config.json and the tokenizer.

FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "hidden_size is None"),
    ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
    ({"num_attention_heads": 3}, "hidden_size is 16: must be an even multiple of num_attention_heads (3)"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3: must divide num_attention_heads (2)"),
    ({"head_dim": 32}, "head_dim is 32: contradicts hidden_size / num_attention_heads = 8"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu': only silu is supported"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling is {'type': 'yarn'"),
    ({"use_sliding_window": True}, "use_sliding_window is True"),
    ({"model_type": "llama"}, "model_type is 'llama'"),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "contradict each other"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
]


@pytest.mark.parametrize(("fields", "says"), FIELDS, ids=[says for _, says in FIELDS])
def test_a_config_that_contradicts_itself_or_means_another_model_is_refused_by_field_and_value(
    model: Path, refused: Run, train: Run, fields: dict[str, Any], says: str
) -> None:
    edit(model / "config.json", **fields)
    refused(*train(), says=("config.json: ", says))


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"])
def test_a_missing_field_is_refused_by_name(model: Path, refused: Run, train: Run, field: str) -> None:
    table = json.loads((model / "config.json").read_text(encoding="utf-8"))
    del table[field]
    (model / "config.json").write_text(json.dumps(table), encoding="utf-8")
    refused(*train(), says=(f"config.json: the field {field} is missing",))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe{\0}\0", b"[" * 100_000, b'{"a": "\xe9"}'])
def test_a_file_of_the_model_that_is_no_json_object_is_refused_by_name(
    model: Path, refused: Run, train: Run, name: str, content: bytes
) -> None:
    (model / name).write_bytes(content)
    refused(*train(), says=(name,))


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["FIFO", "folder"])
def test_a_name_of_the_model_that_is_no_file_is_refused_without_waiting(
    sharded: Path, refused: Run, train: Run, name: str, make: Callable[[Path], None]
) -> None:
    (sharded / name).unlink()
    make(sharded / name)
    refused(*train(model=sharded), says=(f"{name}: not a regular file",))
