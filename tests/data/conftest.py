"""A small byte-level BPE tokenizer with Qwen2's normaliser, pre-tokeniser and added tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from nf4tui.data.tokenizer import ChatTokenizer, load_tokenizer

HERE = Path(__file__).parent

# The pattern of Qwen2's tokenizer.json.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>")
TEXTS = [
    "system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "user\nWhat is the weather in Paris today? Tell me about the weather.\n\n",
    'assistant\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n',
    "assistant\n\nHello there. The answer is 42.\n  indented\n\n\nlines",
    "# Tools\n\nYou may call one or more functions to assist with the user query.",
] * 4


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in ADDED])
    return tokenizer


def write_model_dir(folder: Path, template: str | None, **config: object) -> Path:
    """A model directory with the tokenizer's files only."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    fields: dict[str, object] = {"eos_token": "<|im_end|>", **config}
    if template is not None:
        fields["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def qwen25_template() -> str:
    """The template published with the Qwen2.5 instruct models."""
    return (HERE / "qwen2.5_chat_template.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def qwen2_template() -> str:
    """The template published with the Qwen2 instruct models."""
    return (HERE / "qwen2_chat_template.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, qwen25_template: str) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), qwen25_template)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> ChatTokenizer:
    return load_tokenizer(model_dir)


@pytest.fixture(scope="session")
def plain_tokenizer(model_dir: Path) -> Tokenizer:
    """The same tokenizer.json as transformers would use it: control tokens in text are parsed."""
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))
