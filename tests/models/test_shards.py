"""Weights are read from plain safetensors files of the model's own directory, where the index says, or not."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.errors import InputError
from nf4tui.models.load import load_model
from nf4tui.models.safetensors_file import SafetensorsFile
from nf4tui.models.shards import INDEX, first_ten, open_checkpoint

Refused = Callable[..., str]
Edit = Callable[..., None]
Tensors = dict[str, tuple[str, list[int], bytes]]
Rewrite = Callable[[Path, Callable[[Tensors], None]], None]
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


def weight_map(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return found


@pytest.mark.parametrize(
    "name",
    [
        "../model/model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "model\0.safetensors",
        "..",
        ".",
        "",
        "pytorch_model.bin",
        "a" * 300 + ".safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_the_index_may_name_plain_safetensors_files_only(
    sharded: Path, refused: Refused, edit: Edit, name: object
) -> None:
    edit(sharded / INDEX, weight_map=weight_map(sharded) | {NORM: name})
    says = (str(sharded / INDEX), f"weight_map['{NORM}']", "must be a plain file name in this directory")
    refused(open_checkpoint, sharded, says=says)


@pytest.mark.parametrize("value", [None, [], {}, "model.safetensors", 3])
def test_an_index_without_a_map_is_refused(
    sharded: Path, refused: Refused, edit: Edit, value: object
) -> None:
    edit(sharded / INDEX, weight_map=value)
    refused(open_checkpoint, sharded, says=(str(sharded / INDEX), "weight_map must be a non-empty object"))


def test_an_index_that_is_not_a_json_file_is_refused(sharded: Path, refused: Refused) -> None:
    path = sharded / INDEX
    path.write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')
    refused(open_checkpoint, sharded, says=(str(path), "'a' occurs twice"))
    path.write_text("[]")
    refused(open_checkpoint, sharded, says=(str(path), "must be a JSON object"))
    path.unlink()
    os.mkfifo(path)
    refused(open_checkpoint, sharded, says=(str(path), "not a regular file"))


def test_a_missing_shard_and_one_that_cannot_be_named_are_refused(
    sharded: Path, refused: Refused, edit: Edit
) -> None:
    last = weight_map(sharded)[NORM]
    (sharded / last).unlink()
    refused(load_model, sharded, says=(str(sharded / INDEX), f"the shard '{last}' is missing"))
    edit(sharded / INDEX, weight_map={NORM: "\ud800.safetensors"})
    refused(load_model, sharded, says=("is missing",))
    (sharded / last).symlink_to(last)
    edit(sharded / INDEX, weight_map={NORM: last})
    refused(load_model, sharded, says=(f"'{last}' is missing",))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "FIFO"])
def test_a_shard_that_is_not_a_file_is_refused(
    sharded: Path, refused: Refused, make: Callable[[Path], None]
) -> None:
    last = weight_map(sharded)[NORM]
    (sharded / last).unlink()
    make(sharded / last)
    refused(load_model, sharded, says=(str(sharded / last), "not a regular file"))


def test_tensors_must_be_where_the_index_says(sharded: Path, refused: Refused, edit: Edit) -> None:
    places = weight_map(sharded)
    first, last = places[EMBEDDING], places[NORM]
    edit(sharded / INDEX, weight_map=places | {NORM: first})
    refused(load_model, sharded, says=(str(sharded / INDEX), f"{NORM} (not in {first})"))
    edit(sharded / INDEX, weight_map={name: place for name, place in places.items() if name != NORM})
    refused(load_model, sharded, says=(str(sharded / INDEX), f"does not place there: {NORM} (in {last})"))


def test_a_tensor_in_two_shards_is_refused(sharded: Path, refused: Refused, rewrite: Rewrite) -> None:
    first = weight_map(sharded)[EMBEDDING]
    rewrite(sharded / first, lambda tensors: tensors.update({NORM: ("F32", [32], bytes(128))}))
    refused(load_model, sharded, says=(str(sharded / INDEX), f"does not place there: {NORM} (in {first})"))


def test_both_a_single_file_and_an_index_are_ambiguous(sharded: Path, model: Path, refused: Refused) -> None:
    (sharded / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    refused(load_model, sharded, says=("holds both model.safetensors and", "remove the one"))


# Links, pickles and torn files.


def test_a_link_may_not_leave_the_model_but_for_a_hub_caches_blobs(
    model: Path, sharded: Path, tmp_path: Path, refused: Refused
) -> None:
    for directory, name in ((model, "model.safetensors"), (sharded, weight_map(sharded)[NORM])):
        moved = (directory / name).rename(tmp_path / "elsewhere")
        (directory / name).symlink_to(moved)
        refused(load_model, directory, says=(str(directory / name), "a link that leaves the model directory"))
        moved.rename(directory / "inside")
        (directory / name).unlink()
        (directory / name).symlink_to("inside")
        load_model(directory)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    (snapshot / "inside").rename(blobs / "abc")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    load_model(snapshot)
    (snapshot / "model.safetensors").unlink()
    (blobs / "abc").rename(snapshot.parents[1] / "abc")
    (snapshot / "model.safetensors").symlink_to("../../abc")
    refused(load_model, snapshot, says=("a link that leaves the model directory",))
    (snapshot.parents[1] / "abc").unlink()
    refused(load_model, snapshot, says=("missing or cannot be followed",))


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickles_are_never_opened(model: Path, refused: Refused, tmp_path: Path, name: str) -> None:
    data = pickle.dumps(Bomb(tmp_path / "ran"), protocol=2)
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(data)
    refused(load_model, model, says=(str(model), "pickle", "save_pretrained(safe_serialization=True)"))
    (model / "model.safetensors").write_bytes(data)
    refused(load_model, model, says=(str(model / "model.safetensors"), "pickle", "save_pretrained"))
    assert not (tmp_path / "ran").exists()


def test_a_directory_without_weights_is_refused(model: Path, refused: Refused) -> None:
    (model / "model.safetensors").unlink()
    refused(load_model, model, says=(str(model), "no model.safetensors and no model.safetensors.index.json"))


def test_a_file_that_shrinks_while_the_model_loads_is_refused(
    model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SafetensorsFile.read

    def shrink_then_read(self: SafetensorsFile, name: str, rows: slice | None = None) -> Any:
        if name == "model.layers.1.mlp.down_proj.weight":
            os.truncate(self.path, self.tensors[name].offset + 10)
        return read(self, name, rows)

    monkeypatch.setattr(SafetensorsFile, "read", shrink_then_read)
    refused(load_model, model, says=("truncated while reading tensor 'model.layers.1.mlp.down_proj.weight'",))


def test_long_names_are_cut_in_messages() -> None:
    assert first_ten(["a", "b"]) == "a, b"
    assert first_ten([str(number) for number in range(11)]).endswith("8, 9 and 1 more")
    assert len(first_ten(["x" * 10**6] * 10)) < 2000


def test_nothing_is_written_when_input_is_refused(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    with pytest.raises(InputError):
        load_model(model)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
