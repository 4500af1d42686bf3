"""A hub id is found in the local cache without the network, and offered where a model is chosen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def add(cache: Path, name: str, files: dict[str, bytes]) -> None:
    """A repository as huggingface_hub lays it out."""
    repo = cache / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / REVISION
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(REVISION)
    for number, (file, data) in enumerate(files.items()):
        (repo / "blobs" / str(number)).write_bytes(data)
        (snapshot / file).symlink_to(Path("..", "..", "blobs", str(number)))


@pytest.fixture
def cache(tmp_path: Path, sample_model: Path) -> Path:
    cache = tmp_path / "cache"
    add(cache, "someone/tiny-qwen2", {path.name: path.read_bytes() for path in sample_model.iterdir()})
    add(cache, "someone/other", {"config.json": b'{"model_type": "llama"}'})
    return cache


def test_a_hub_id_is_loaded_from_the_cache(run: Run, data: Path, cache: Path) -> None:
    flags = ("eval", data, "--model", "someone/tiny-qwen2", "--no-generate", "--json")
    found = run(*flags, HF_HUB_CACHE=str(cache))
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["samples"] == 8


def test_a_hub_id_that_is_not_there_is_refused_in_one_line(run: Run, data: Path, cache: Path) -> None:
    found = run("eval", data, "--model", "someone/absent", HF_HUB_CACHE=str(cache))
    assert found.returncode == 2 and found.stderr.count("\n") == 1
    assert "not in the local hub cache" in found.stderr


def test_doctor_lists_the_models_that_can_be_used(run: Run, cache: Path) -> None:
    found = run("doctor", HF_HUB_CACHE=str(cache))
    (line,) = [line for line in found.stdout.splitlines() if "hub cache" in line]
    assert "someone/tiny-qwen2" in line and "other" not in line
