"""Weights from strangers, as `train --model` meets them: refused in one line by tensor and file, or right."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.data.tokenizer import load_tokenizer
from nf4tui.models.load import load_model
from nf4tui.models.safetensors_file import SafetensorsFile
from nf4tui.reference.nf4 import nf4_dequantize

Run = Callable[..., Any]
Tensors = dict[str, tuple[str, list[int], bytes]]
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def read_raw(path: Path) -> Tensors:
    """name -> (dtype, shape, bytes), read by nothing of nf4tui."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write_raw(path: Path, tensors: Tensors) -> None:
    """The reverse of read_raw."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    write_file(path, json.dumps(header).encode(), body)


def write_file(path: Path, header: bytes, body: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + body)


def header_of(path: Path) -> tuple[bytes, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length], data[8 + length :]


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


@pytest.fixture
def weights(model: Path) -> Path:
    return model / "model.safetensors"


# The tensors.


def missing(tensors: Tensors) -> None:
    for name in [name for name in tensors if "layers.1" in name][:11]:
        del tensors[name]


def extra(tensors: Tensors) -> None:
    tensors.update({f"extra.{number:02}": ("F32", [1], bytes(4)) for number in range(11)})


def reshaped(tensors: Tensors) -> None:
    for name, (dtype, shape, data) in list(tensors.items()):
        if len(shape) == 2 and "layers" in name:
            tensors[name] = (dtype, [shape[0] // 2, shape[1] * 2], data)


def retyped(tensors: Tensors) -> None:
    for name in [name for name in tensors if "layers" in name][:11]:
        _, shape, data = tensors[name]
        tensors[name] = ("I16", shape, data)


@pytest.mark.parametrize(
    ("change", "says", "listed"),
    [
        (missing, "missing tensors: ", 11),
        (extra, "tensors that config.json does not imply: ", 11),
        (reshaped, "config.json implies [", 14),
        (retyped, "is I16, one of BF16, F16, F32 is needed", 11),
    ],
)
def test_tensors_that_do_not_fit_are_refused_and_the_first_ten_listed(
    weights: Path, refused: Run, train: Run, change: Callable[[Tensors], None], says: str, listed: int
) -> None:
    tensors = read_raw(weights)
    change(tensors)
    write_raw(weights, tensors)
    line = refused(*train(), says=("model.safetensors: ", says, f" and {listed - 10} more"))
    assert line.count("model.layers.") + line.count("extra.") == 10


def repeated(header: bytes, body: bytes) -> tuple[bytes, bytes]:
    entry = json.dumps(json.loads(header)[NORM]).encode()
    return header.rstrip()[:-1] + b', "model.norm.weight": ' + entry + b"}", body


def moved_by(step: int) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    def change(header: bytes, body: bytes) -> tuple[bytes, bytes]:
        entries = json.loads(header)
        entries[NORM]["data_offsets"] = [offset + step for offset in entries[NORM]["data_offsets"]]
        return json.dumps(entries).encode(), body + bytes(max(0, step))

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (repeated, "the name 'model.norm.weight' occurs twice in its header"),
        (lambda header, body: (b"  " + header, body), "its header does not begin with '{'"),
        (lambda header, body: (header, body + b"#!/bin/sh\n"), "10 bytes after the last tensor"),
        (moved_by(-16), "overlaps another tensor"),
        (moved_by(16), "leaves a gap before it"),
        (lambda header, body: (header, body[:-1]), "truncated: its header describes"),
    ],
    ids=["twice", "blank", "trailing", "overlap", "gap", "cut"],
)
def test_a_safetensors_file_that_is_not_strictly_one_is_refused(
    weights: Path, refused: Run, train: Run, change: Callable[[bytes, bytes], tuple[bytes, bytes]], says: str
) -> None:
    write_file(weights, *change(*header_of(weights)))
    refused(*train(), says=("model.safetensors: ", says))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 200 * 2**20, 10**7])
def test_a_header_bomb_is_refused_before_it_is_read(
    weights: Path, refused: Run, train: Run, length: int
) -> None:
    _, body = header_of(weights)
    weights.write_bytes(length.to_bytes(8, "little") + b"{" + body)
    refused(*train(), says=(f"model.safetensors: its header claims {length} bytes",))


def test_a_header_of_nested_brackets_is_refused(weights: Path, refused: Run, train: Run) -> None:
    write_file(weights, b'{"a": ' + b"[" * 10**6, b"")
    refused(*train(), says=("model.safetensors: its safetensors header is not valid JSON",))


@pytest.mark.parametrize("name", [EMBEDDING, NORM, UP, "model.layers.1.self_attn.q_proj.bias"])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("BF16", [0x7FC0, 0x7F80, 0xFF80]),
        ("F16", [0x7E00, 0x7C00, 0xFC00]),
        ("F32", [0x7FC00000, 0x7F800000, 0xFF800000]),
    ],
)
def test_nan_and_infinity_are_refused_with_tensor_and_count(
    weights: Path, refused: Run, train: Run, name: str, dtype: str, values: list[int]
) -> None:
    """Infinity in float16 is what an overflow leaves there."""
    tensors = read_raw(weights)
    _, shape, data = tensors[name]
    bits = np.zeros(len(data) // 2, np.uint32 if dtype == "F32" else np.uint16)
    bits[[0, 5, -1]] = values
    tensors[name] = (dtype, shape, bits.tobytes())
    write_raw(weights, tensors)
    refused(*train(), says=(f"model.safetensors: tensor '{name}' has 3 non-finite values",))


def test_blocks_of_zeros_are_legal_and_dequantise_to_zeros(weights: Path, nf4tui: Run, train: Run) -> None:
    tensors = read_raw(weights)
    dtype, shape, data = tensors[UP]
    tensors[UP] = (dtype, shape, bytes(256) + data[256:])  # two blocks of 64 bfloat16
    write_raw(weights, tensors)
    loaded = load_model(weights.parent).layers[0].projections["up_proj"]
    assert not loaded.absmax[:2].any() and loaded.absmax[2:].all()
    values = nf4_dequantize(loaded.packed, loaded.absmax, loaded.shape).reshape(-1)
    assert not values[:128].any() and values[128:].any() and np.isfinite(values).all()
    assert nf4tui(*train()).code == 0


def test_a_file_truncated_while_it_is_read_is_refused(
    weights: Path, nf4tui: Run, train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SafetensorsFile.read

    def shrink_then_read(self: SafetensorsFile, name: str, rows: slice | None = None) -> Any:
        if name == UP:
            os.truncate(self.path, self.tensors[name].offset + 10)
        return read(self, name, rows)

    monkeypatch.setattr(SafetensorsFile, "read", shrink_then_read)
    found = nf4tui(*train())
    assert found.code == 2 and found.err.count("\n") == 1
    assert f"model.safetensors: truncated while reading tensor '{UP}'" in found.err
    assert not (weights.parents[1] / "run").exists()


# Pickles.


class Attack:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.npz", "weights.npy"]
)
def test_weights_that_can_run_code_are_refused_unopened_with_the_way_to_convert(
    model: Path, weights: Path, refused: Run, train: Run, name: str
) -> None:
    weights.unlink()
    (model / name).write_bytes(pickle.dumps(Attack(model.parent / "attacked")))
    refused(*train(), says=("can run code when opened", "save_pretrained(safe_serialization=True)"))
    (model / name).unlink()
    os.mkfifo(model / name)  # to open it would wait for ever
    refused(*train(), says=("can run code when opened",))


def object_array(path: Path) -> bytes:
    with path.open("wb") as file:
        np.savez(file, a=np.array([Attack(path.parent / "attacked")], dtype=object))
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["pickle 2", "pickle 5", "npz of objects"])
def test_a_pickle_by_any_name_is_refused_by_its_first_bytes(
    model: Path, weights: Path, refused: Run, train: Run, kind: str
) -> None:
    attack = Attack(model.parent / "attacked")
    data = object_array(weights) if kind.startswith("npz") else pickle.dumps(attack, protocol=int(kind[-1]))
    weights.write_bytes(data)
    refused(*train(), says=("model.safetensors: a pickle or zip archive", "convert it with"))


# The vocabulary.


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_with_both(
    model: Path, weights: Path, refused: Run, train: Run
) -> None:
    tensors = read_raw(weights)
    _, shape, data = tensors[EMBEDDING]
    tensors[EMBEDDING] = ("BF16", [258, shape[1]], data[: 258 * shape[1] * 2])
    write_raw(weights, tensors)
    edit(model / "config.json", vocab_size=258)
    refused(*train(), says=("vocab_size is 258, but the tokenizer has ids up to 258",))


def test_a_vocabulary_larger_than_the_tokenizers_is_normal_and_never_resized(
    model: Path, weights: Path, nf4tui: Run, train: Run
) -> None:
    before = weights.read_bytes()
    assert json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"] == 272
    assert load_tokenizer(model).size == 259
    assert nf4tui(*train()).code == 0
    assert load_model(model).embedding.data.shape[0] == 272
    assert weights.read_bytes() == before


# Tied heads.


def test_a_tied_model_with_another_head_is_refused_with_what_was_found(
    weights: Path, refused: Run, nf4tui: Run, train: Run
) -> None:
    tensors = read_raw(weights)
    dtype, shape, data = tensors[EMBEDDING]
    tensors["lm_head.weight"] = (dtype, shape, data)
    write_raw(weights, tensors)
    assert nf4tui(*train()).code == 0
    tensors["lm_head.weight"] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
    write_raw(weights, tensors)
    says = ("tie_word_embeddings true, but lm_head.weight differs from model.embed_tokens.weight",)
    refused(*train(out="other"), says=says)


def test_an_untied_model_without_a_head_is_refused_with_what_was_found(
    model: Path, refused: Run, train: Run
) -> None:
    edit(model / "config.json", tie_word_embeddings=False)
    refused(*train(), says=("missing tensors: lm_head.weight (config.json says tie_word_embeddings false",))
