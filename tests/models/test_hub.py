"""A model's name is a directory or a hub id; the hub is asked for nothing but what the local cache lacks.

The cache's place is read when huggingface_hub is imported, so a process of its own looks into each.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub

from nf4tui.errors import InputError
from nf4tui.models.default_model import model_of_user_settings, sample_model_of
from nf4tui.models.hub import resolve_model

Refused = Callable[..., str]
REVISION = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import sys
from nf4tui.errors import InputError
from nf4tui.models.default_model import cached_models
from nf4tui.models.hub import resolve_model
from nf4tui.models.load import load_model
print(cached_models())
for name in sys.argv[1:]:
    try:
        directory = resolve_model(name)
        print(directory, load_model(directory).config.hidden_size)
    except InputError as error:
        print("refused", error)
"""


@pytest.fixture
def cache(tmp_path: Path, model: Path) -> Path:
    """The tiny model in a cache as huggingface_hub lays it out, each file a link to a blob."""
    repo = tmp_path / "cache" / "models--some--tiny"
    snapshot = repo / "snapshots" / REVISION
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(REVISION)
    for number, path in enumerate(sorted(model.iterdir())):
        path.rename(repo / "blobs" / str(number))
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return tmp_path / "cache"


def test_a_cached_id_loads_offline_and_an_uncached_one_is_refused(cache: Path, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "some/tiny", "some/absent", "absent"],
        env=kept | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    cached, loaded, *refusals = done.stdout.splitlines()
    assert cached == "['some/tiny']"
    assert loaded == f"{cache}/models--some--tiny/snapshots/{REVISION} 32"
    assert len(refusals) == 2
    for name, line in zip(("some/absent", "absent"), refusals, strict=True):
        assert line.startswith(f"refused {name}: not a directory and not in the local hub cache")


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.mark.usefixtures("no_hub")
def test_a_directory_is_taken_as_it_is(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_model(str(model)) == model
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/model") == model
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model") == Path("model")


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "the model's name is empty"),
        ("./absent", "no such directory, and not a hub id"),
        ("/absent/model", "no such directory, and not a hub id"),
        ("~/absent", "no such directory, and not a hub id"),
        ("a/b/c", "no such directory, and not a hub id"),
        ("../up", "no such directory, and not a hub id"),
        ("~no-such-user/model", "there is no such user's home directory"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_name_that_is_neither_is_refused_without_asking_the_hub(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, says: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    refused(resolve_model, name, says=(says,))


@pytest.mark.parametrize(
    "name", ["a b", "a\\b", "some/", "some/na:me", "some--tiny", "a..b", "x.git", "caf\u00e9", "a\0b", "a\nb"]
)
def test_what_the_hub_calls_invalid_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(resolve_model, name, says=(repr(name), "not a valid hub id"))


@pytest.mark.usefixtures("no_hub")
def test_a_file_is_refused(model: Path, refused: Refused) -> None:
    refused(resolve_model, str(model / "config.json"), says=("a file; --model takes",))


def failure(kind: type[Exception], text: str) -> Exception:
    """With a stand-in for the response, which is of whichever HTTP client the hub's library uses."""
    if issubclass(kind, hub.HfHubHTTPError):
        return kind(text, response=SimpleNamespace(headers={}, request=None))
    return kind(text)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (failure(hub.GatedRepoError, "x\ny"), "access to this model must be granted"),
        (failure(hub.RepositoryNotFoundError, "x\ny"), "no such public model on the hub"),
        (failure(hub.LocalEntryNotFoundError, "x\ny"), "the hub cannot be reached"),
        (failure(hub.OfflineModeIsEnabled, "x\ny"), "the hub cannot be reached"),
        (failure(hub.HfHubHTTPError, "500 Server Error\nmore"), "hub: 500 Server Error"),
        (failure(hub.HfHubHTTPError, ""), "from the hub: HfHubHTTPError"),
        (failure(hub.HTTPError, "503 from proxy"), "could not be fetched from the hub: 503 from proxy"),
        (OSError("No space left on device"), "could not be fetched from the hub: No space left on device"),
    ],
)
def test_each_failure_of_the_hub_is_one_line(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, says: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    refused(resolve_model, "some/model", says=("some/model: ", says))


def test_weights_are_asked_for_as_safetensors_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda _, **named: asked.append(named) or str(tmp_path)
    )
    assert resolve_model("some/model") == tmp_path
    (patterns,) = (named["allow_patterns"] for named in asked)
    assert "*.safetensors" in patterns
    for name in ("pytorch_model.bin", "model.pt", "modeling.py", "model.npz"):
        assert not any(Path(name).match(pattern) for pattern in patterns)


def test_the_sample_model_is_found_by_its_data(tmp_path: Path) -> None:
    data = tmp_path / "sample_data" / "train.jsonl"
    assert sample_model_of(str(data)) is None
    (tmp_path / "sample_data" / "model").mkdir(parents=True)
    assert sample_model_of(str(data)) is None
    (tmp_path / "sample_data" / "model" / "tokenizer.json").write_text("{}")
    assert sample_model_of(str(data)) == tmp_path / "sample_data" / "model"
    assert sample_model_of(str(tmp_path / "train.jsonl")) is None
    for name in ("~no-such-user/data.jsonl", "a\0b"):
        assert sample_model_of(name) is None
    (tmp_path / "loop").symlink_to("loop")
    assert sample_model_of(str(tmp_path / "loop")) is None


def test_the_users_settings_name_a_model_or_are_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "config.toml"
    assert model_of_user_settings(path) is None
    for text, model in (("", None), ('model = "some/model"', "some/model")):
        path.write_text(text)
        assert model_of_user_settings(path) == model
    for data, says in (
        (b"model = 3", "model = 3: must be text"),
        (b'models = "a"', "there is no setting 'models'"),
        (b"model =", "not valid TOML"),
        (b"\xff", "not valid TOML"),
    ):
        path.write_bytes(data)
        refused(model_of_user_settings, path, says=(str(path), says))
    with pytest.raises(InputError):
        model_of_user_settings(tmp_path)
