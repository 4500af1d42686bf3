"""A model's tokenizer, from tokenizer.json, with the rules of chat training around it.

Content never becomes a control token: tokens with `special: true` (`<|im_end|>`, …) inside text are encoded
as the plain characters that they are written with. Added tokens that are not special (`<tool_call>`, …) are
one id wherever they stand, as in transformers and as the model saw them in its own training.

The end of a turn is `<|im_end|>`. Generation stops at it, and at whatever else the model's files name:
`eos_token_id` of generation_config.json, `eos_token` of tokenizer_config.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from nf4tui.data.chat_template import style_of
from nf4tui.data.chatml import TURN_END, TURN_START, ChatStyle
from nf4tui.errors import InputError


@dataclass(frozen=True, slots=True)
class Encoding:
    """ids: [n]. spans: [n] (start, end) characters of the text that each id covers."""

    ids: list[int]
    spans: list[tuple[int, int]]


class ChatTokenizer:
    """Text to ids and back. Built by load_tokenizer.

    control_tokens: id by text of the special tokens. eos_token_ids: all ids that generation stops at.
    size: one more than the largest id.
    """

    def __init__(
        self, tokenizer: Tokenizer, style: ChatStyle, eos_token_ids: frozenset[int], where: str
    ) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.control_tokens = {token.content: id for id, token in sorted(added.items()) if token.special}
        for name in (TURN_START, TURN_END):
            if name not in self.control_tokens:
                raise InputError(
                    f"{where}: has no special token {name}; a tokenizer of Qwen2 or Qwen2.5 is needed"
                )
        self.style = style
        self.end_token_id = self.control_tokens[TURN_END]
        self.eos_token_ids = eos_token_ids | {self.end_token_id}
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        # Spans must cover every character; Qwen's ids do not depend on the post-processor.
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Encoding:
        """`text` as plain text: no control token comes out of it."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return Encoding(encoding.ids, encoding.offsets)

    def encode_text(self, text: str) -> list[int]:
        """The ids of `encode`."""
        return self.encode(text).ids

    def control_token_id(self, name: str) -> int:
        """The id of a special token. Raises KeyError."""
        return self.control_tokens[name]

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD. skip_special leaves control tokens out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)


def load_tokenizer(model_dir: Path) -> ChatTokenizer:
    """Reads tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a model
    directory; all but the first may be missing. Raises InputError."""
    path = model_dir / "tokenizer.json"
    text = _read(path)
    if text is None:
        raise InputError(f"{path}: no such file; the model directory needs a fast tokenizer")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(
            f"{path}: not a readable tokenizer ({_one_line(error)}); download it again"
        ) from None
    config = _read_object(model_dir / "tokenizer_config.json")
    generation = _read_object(model_dir / "generation_config.json")
    style = style_of(_chat_template(model_dir, config), str(model_dir))
    return ChatTokenizer(tokenizer, style, _stop_ids(tokenizer, config, generation, model_dir), str(path))


def check_vocabulary(tokenizer: ChatTokenizer, vocab_size: int) -> None:
    """A model may have more rows than the tokenizer has ids, never fewer. Raises InputError."""
    if tokenizer.size > vocab_size:
        raise InputError(
            f"config.json: vocab_size is {vocab_size}, but the tokenizer has ids up to {tokenizer.size - 1};"
            " take tokenizer and weights from one model"
        )


def _chat_template(model_dir: Path, config: dict[str, Any]) -> str | None:
    """The file wins over the field, as in transformers; of several named templates, `default`."""
    text = _read(model_dir / "chat_template.jinja")
    if text is not None:
        return text
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise InputError(f"{model_dir / 'tokenizer_config.json'}: 'chat_template' must be text")
    return template


def _stop_ids(
    tokenizer: Tokenizer, config: dict[str, Any], generation: dict[str, Any], model_dir: Path
) -> frozenset[int]:
    found = generation.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for value in ids:
        if type(value) is not int or value < 0:
            raise InputError(
                f"{model_dir / 'generation_config.json'}: 'eos_token_id' must be an id or a list of ids;"
                f" got {value!r}"
            )
    eos = config.get("eos_token")
    name = eos.get("content") if isinstance(eos, dict) else eos
    if name is None:
        return frozenset(ids)
    token_id = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if token_id is None:
        raise InputError(
            f"{model_dir / 'tokenizer_config.json'}: 'eos_token' is {name!r},"
            " which the tokenizer does not have; take both files from one model"
        )
    return frozenset([*ids, token_id])


def _read(path: Path) -> str | None:
    """The text of a file, None if there is none. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} if there is none. Raises InputError."""
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({_one_line(error)}); download it again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object; download it again")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
