"""The command line in this process, in a folder of its own, with everything in that folder watched."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nf4tui import cli
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint

ROOT = Path(__file__).parents[2]
# What may not reach a terminal from data: C0, DEL and C1, soft hyphen, zero-width and bidi characters, line
# separators, the byte-order mark.
HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TINY = Qwen2Config(
    vocab_size=272,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


@pytest.fixture
def hidden() -> re.Pattern[str]:
    return HIDDEN


@dataclass(frozen=True, slots=True)
class Found:
    """What a command left: its exit code and its two streams."""

    code: int
    out: str
    err: str


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; home, cache and configuration lie in it."""
    for name in [name for name in os.environ if name.startswith(("NF4TUI_", "HF_"))]:
        monkeypatch.delenv(name)
    for name, folder in (("HOME", "home"), ("XDG_CACHE_HOME", "cache"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def nf4tui(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Found]:
    """Runs a command line."""

    def call(*arguments: str | Path) -> Found:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Found(code, shown.out, shown.err)

    return call


def everything(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of every name in a folder; what is no regular file is not opened."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        content = str(path.readlink()) if stat.S_ISLNK(mode) else ""
        if stat.S_ISREG(mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (mode, content)
    return found


@pytest.fixture
def refused(place: Path, nf4tui: Callable[..., Found]) -> Callable[..., str]:
    """Runs a command line that must be refused: exit 2, one line on stderr that holds every text of `says`, no
    character that a terminal would obey, nothing on stdout (unless `printed`), and no name or byte changed."""

    def call(*arguments: str | Path, says: tuple[str, ...] = (), printed: bool = False) -> str:
        before = everything(place)
        found = nf4tui(*arguments)
        assert found.code == 2, found
        assert found.err.startswith("nf4tui: error: ") and found.err.endswith("\n"), found
        assert found.err.count("\n") == 1 and "Traceback" not in found.err, found
        assert not HIDDEN.search(found.err + found.out), found
        for text in says:
            assert text in found.err, found.err
        assert printed or found.out == ""
        assert everything(place) == before
        return found.err

    return call


def write_tokenizer(folder: Path, *more: str) -> None:
    """A tokenizer of bytes with Qwen's control tokens (and `more` of them), and Qwen2.5's chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = (*CONTROLS, *more)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (ROOT / "tests/data/qwen2.5_chat_template.jinja").read_text(encoding="utf-8")
    config = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def model(place: Path) -> Path:
    """A whole model directory: config.json, model.safetensors and the tokenizer's files."""
    folder = place / "model"
    write_random_checkpoint(folder, TINY)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def sharded(place: Path) -> Path:
    """The same model in shards with an index."""
    folder = place / "sharded"
    write_random_checkpoint(folder, TINY, shard_bytes=8_000)
    write_tokenizer(folder)
    return folder


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.fixture
def data(place: Path) -> Path:
    """Four small conversations."""
    path = place / "data.jsonl"
    path.write_text("".join(json.dumps(chat(f"{n}?", "yes")) + "\n" for n in range(4)), encoding="utf-8")
    return path


@pytest.fixture
def train(model: Path, data: Path) -> Callable[..., list[str | Path]]:
    """The words of `train` for a run of two steps that nothing is wrong with, and more."""

    def build(
        *more: str | Path, data: Path = data, model: Path = model, out: str | Path = "run"
    ) -> list[Any]:
        return ["train", data, "--model", model, "--out", out, "--steps", "2", "--no-tui", *more]

    return build
