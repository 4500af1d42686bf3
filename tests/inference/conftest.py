"""A tokenizer of bytes with Qwen's control tokens, and an engine that says what a test tells it to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nf4tui.data.tokenizer import ChatTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False, special=False) for name in ("<tool_call>", "</tool_call>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    template = Path(__file__).parents[1] / "data/qwen2.5_chat_template.jinja"
    config = {"eos_token": "<|endoftext|>", "chat_template": template.read_text(encoding="utf-8")}
    Path(folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


@dataclass
class Script:
    """An engine whose decoders say `answers`, one a decoder, and then end the turn. Logits have `vocabulary`
    entries; `prompts` are the tokens that decoders were given first, `rooms` their sizes."""

    tokenizer: ChatTokenizer
    answers: list[list[int]]
    vocabulary: int = 0
    prompts: list[list[int]] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)

    def start_decoding(self, max_tokens: int) -> "Reciting":
        self.rooms.append(max_tokens)
        return Reciting(self, [*self.answers[len(self.rooms) - 1], self.tokenizer.end_token_id], max_tokens)


@dataclass
class Reciting:
    script: Script
    left: list[int]
    room: int
    begun: bool = False

    def extend(self, ids: Sequence[int]) -> NDArray[Any]:
        if not self.begun:
            self.script.prompts.append(list(ids))
            self.begun = True
        self.room -= len(ids)
        assert self.room >= 0, "more tokens than the decoder was made for"
        logits = np.zeros(max(self.script.vocabulary, self.script.tokenizer.size), np.float32)
        logits[self.left.pop(0)] = 9
        return logits


@pytest.fixture
def script() -> type[Script]:
    return Script
