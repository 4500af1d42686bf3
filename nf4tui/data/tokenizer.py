"""A model's tokenizer, from tokenizer.json, with the rules of chat training around it.

Content never becomes a control token: tokens with `special: true` (`<|im_end|>`, …) inside text are encoded
as the plain characters that they are written with. Added tokens that are not special (`<tool_call>`, …) are
one id wherever they stand, as in transformers and as the model saw them in its own training.

The end of a turn is that of the chat form, `<|im_end|>` in Qwen's. Generation stops at it, and at whatever
else the model's files name: `eos_token_id` of generation_config.json, `eos_token` of tokenizer_config.json.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from nf4tui.data.chat_form import ChatForm
from nf4tui.data.chat_template import form_of
from nf4tui.data.chatml import TURN_END, TURN_START
from nf4tui.errors import InputError
from nf4tui.small_files import read_json_object, read_text

DOCUMENT_END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Encoding:
    """ids: [n]. spans: [n] (start, end) characters of the text that each id covers."""

    ids: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ModelEnds:
    """The ids that a model's own files end a text with, by file."""

    generation: frozenset[int]
    tokenizer: frozenset[int]

    @property
    def ids(self) -> frozenset[int]:
        return self.generation | self.tokenizer


class ChatTokenizer:
    """Text to ids and back. Built by load_tokenizer.

    control_tokens: id by text of the special tokens. form: how the model writes conversations. end_token_id:
    what an answer ends with. has_template: whether the model
    has a chat template of its own. eos_token_ids: all ids that generation stops at. document_end: the control
    token between documents. size: one more than the largest id. notes: what a user should know about the
    ends in use. identity: a hash of all that ids and masks depend on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: ChatForm,
        control_tokens: dict[str, int],
        ends: ModelEnds,
        *,
        text_sha256: str,
        has_template: bool,
    ) -> None:
        self.form = form
        self.has_template = has_template
        self.control_tokens = control_tokens
        self.end_token_id = self.control_tokens[form.end]
        self.eos_token_ids = ends.ids | {self.end_token_id}
        self.document_end = DOCUMENT_END if DOCUMENT_END in self.control_tokens else form.end
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.notes = tuple(self._notes(ends, has_template=has_template))
        self.identity = hashlib.sha256(f"{text_sha256}\n{form.identity}".encode()).hexdigest()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        # Spans must cover every character; Qwen's ids do not depend on the post-processor.
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        self._tokenizer = tokenizer

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """`eos_token_ids`, the end that answers are trained with first: as generation_config.json lists them."""
        return (self.end_token_id, *sorted(self.eos_token_ids - {self.end_token_id}))

    def _notes(self, ends: ModelEnds, *, has_template: bool) -> Iterator[str]:
        names = {id: name for name, id in self.control_tokens.items()}

        def shown(ids: frozenset[int]) -> str:
            return ", ".join(names.get(id, f"id {id}") for id in sorted(ids))

        if not has_template:
            yield (
                "the model has no chat template, as a base model: conversations are written as ChatML, whose"
                f" control tokens {TURN_START} and {TURN_END} it may never have seen"
            )
        if ends.ids and self.end_token_id not in ends.ids:
            yield (
                f"the model's files end a text with {shown(ends.ids)}, as a base model's do; answers are"
                f" trained to end with {self.form.end} (id {self.end_token_id}), which it may never have seen"
            )
        elif ends.tokenizer and ends.generation and not ends.tokenizer <= ends.generation:
            yield (
                f"tokenizer_config.json ends with {shown(ends.tokenizer)}, generation_config.json with"
                f" {shown(ends.generation)}; answers are trained to end with {self.form.end}"
            )

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
    template = _chat_template(model_dir, config)
    added = tokenizer.get_added_tokens_decoder()
    controls = {token.content: id for id, token in sorted(added.items()) if token.special}
    form = form_of(template, _special_tokens(config), list(controls), str(model_dir))
    return ChatTokenizer(
        tokenizer,
        form,
        controls,
        _ends(tokenizer, config, generation, model_dir),
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        has_template=template is not None,
    )


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


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names, by the names that chat templates use."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _ends(
    tokenizer: Tokenizer, config: dict[str, Any], generation: dict[str, Any], model_dir: Path
) -> ModelEnds:
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
        return ModelEnds(frozenset(ids), frozenset())
    token_id = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if token_id is None:
        raise InputError(
            f"{model_dir / 'tokenizer_config.json'}: 'eos_token' is {name!r},"
            " which the tokenizer does not have; take both files from one model"
        )
    return ModelEnds(frozenset(ids), frozenset({token_id}))


def _read(path: Path) -> str | None:
    """The text of a file, None if there is none. Raises InputError."""
    return read_text(path) if path.exists() or path.is_symlink() else None


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} if there is none. Raises InputError."""
    return read_json_object(path) if path.exists() or path.is_symlink() else {}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
