"""A tiny real model with its tokenizer and data, for runs as users start them."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nf4tui.config import TrainConfig
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint
from nf4tui.runs.settings import to_toml

TINY = Qwen2Config(
    vocab_size=272,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=128,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """A random Qwen2 with a tokenizer of bytes and Qwen's control tokens."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = Path(__file__).parents[1] / "data/qwen2.5_chat_template.jinja"
    config = {"eos_token": "<|im_end|>", "chat_template": template.read_text(encoding="utf-8")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    write_random_checkpoint(folder, TINY, seed=seed)


def write_data(path: Path, count: int = 24, answer: str = "no") -> None:
    records = (
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": f"is {number} even"},
                {"role": "assistant", "content": answer if number % 2 else "yes"},
            ]
        }
        for number in range(count)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A tiny model and data on disk; `config` makes settings for a 20-step run over them."""

    model: Path
    data: Path

    def config(self, out: Path, **changes: Any) -> TrainConfig:
        values = {
            "data": (str(self.data),),
            "model": str(self.model),
            "out": str(out),
            "steps": 20,
            "batch_size": 2,
            "max_seq_len": 128,
            "rank": 2,
            "dropout": 0.1,
            "lr": 1e-2,
            "eval_split": 0.25,
            "eval_every": 6,
            "save_every": 4,
            "parity_every": 10,
            **changes,
        }
        return TrainConfig(**values)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder / "model")
    write_data(folder / "train.jsonl")
    return Tiny(folder / "model", folder / "train.jsonl")


_COMMAND = """
import json, sys
from nf4tui.commands.train import run
from nf4tui.errors import Nf4tuiError
from nf4tui.runs.settings import parse_settings
options = json.loads(sys.argv[1])
config = parse_settings(options.pop("settings"), "test")
explicit = frozenset(options.pop("explicit"))
try:
    sys.exit(run(config, explicit=explicit, **options))
except Nf4tuiError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def command() -> Callable[..., list[str]]:
    """The command line of a process that runs nf4tui train's `run` with the given settings."""

    def build(config: TrainConfig, *, resume: bool = False, as_json: bool = False) -> list[str]:
        options = {
            "settings": to_toml(config),
            "resume": resume,
            "no_tui": True,
            "as_json": as_json,
            "explicit": [],
        }
        return [sys.executable, "-c", _COMMAND, json.dumps(options)]

    return build
