"""A model directory's tokenizer files, good and broken."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nf4tui.data.tokenizer import ChatTokenizer, check_vocabulary, load_tokenizer
from nf4tui.errors import InputError


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def write_config(folder: Path, **fields: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


AWKWARD = [
    "👩‍🚀 emoji",
    "中文字符",
    "שלום עולם",
    "e\u0301 é A\u030a",
    " " * 10_000,
    "\r\n\r\n \t\n",
    "\u2028\u0085",
    "'LL 123",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_ids_equal_those_of_the_tokenizers_library(
    tokenizer: ChatTokenizer, plain_tokenizer: Tokenizer, text: str
) -> None:
    assert tokenizer.encode_text(text) == plain_tokenizer.encode(text, add_special_tokens=False).ids


@given(text=st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_spans_of_any_text_cover_all_of_it(tokenizer: ChatTokenizer, text: str) -> None:
    covered = set()
    for start, end in tokenizer.encode(text).spans:
        assert 0 <= start < end <= len(text)
        covered |= set(range(start, end))
    assert covered == set(range(len(text)))


def test_special_tokens_in_text_stay_text_and_added_ones_are_one_id(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_text("<|im_end|><tool_call><|endoftext|>")
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids) == "<|im_end|><tool_call><|endoftext|>"
    assert [tokenizer.decode([token]) for token in ids].count("<tool_call>") == 1


def test_decoding_can_leave_control_tokens_out(tokenizer: ChatTokenizer) -> None:
    ids = [*tokenizer.encode_text("a<tool_call>"), tokenizer.end_token_id]
    assert tokenizer.decode(ids) == "a<tool_call><|im_end|>"
    assert tokenizer.decode(ids, skip_special=True) == "a<tool_call>"


def test_a_truncation_stored_in_the_file_cuts_nothing(folder: Path) -> None:
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=32)
    stored.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode_text("1 2 3 4 5 6 7 8")) == 15


def test_generation_stops_at_all_ids_that_the_files_name(folder: Path, tokenizer: ChatTokenizer) -> None:
    end, text_end = tokenizer.end_token_id, tokenizer.control_token_id("<|endoftext|>")
    assert tokenizer.eos_token_ids == {end}
    write_config(folder, eos_token={"content": "<|endoftext|>"})
    assert load_tokenizer(folder).eos_token_ids == {end, text_end}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, end]}))
    assert load_tokenizer(folder).eos_token_ids == {5, end, text_end}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 6}))
    assert load_tokenizer(folder).eos_token_ids == {6, end, text_end}


def test_the_vocabulary_may_be_larger_than_the_tokenizer_but_not_smaller(tokenizer: ChatTokenizer) -> None:
    check_vocabulary(tokenizer, tokenizer.size)
    check_vocabulary(tokenizer, tokenizer.size + 271)
    with pytest.raises(InputError, match="vocab_size is"):
        check_vocabulary(tokenizer, tokenizer.size - 1)


def test_the_template_file_wins_over_the_field(
    folder: Path, qwen25_template: str, qwen2_template: str
) -> None:
    (folder / "chat_template.jinja").write_text(qwen2_template)
    assert load_tokenizer(folder).form.name == "qwen2"
    (folder / "chat_template.jinja").unlink()
    write_config(folder, chat_template=[{"name": "x"}, {"name": "default", "template": qwen2_template}])
    assert load_tokenizer(folder).form.name == "qwen2"
    write_config(folder)
    assert load_tokenizer(folder).form.name == "chatml"


def test_broken_files_are_refused_by_name(folder: Path) -> None:
    config, generation = folder / "tokenizer_config.json", folder / "generation_config.json"
    config.write_text("{")
    assert refusal(folder).startswith("tokenizer_config.json: not valid JSON")
    config.write_text("[]")
    assert refusal(folder).startswith("tokenizer_config.json: must be a JSON object")
    config.write_bytes(b"\xff")
    assert refusal(folder).startswith("tokenizer_config.json: is not text in UTF-8")
    write_config(folder, eos_token="<eos>")
    assert refusal(folder).startswith("tokenizer_config.json: 'eos_token' is '<eos>'")
    write_config(folder, chat_template=5)
    assert refusal(folder).startswith("tokenizer_config.json: 'chat_template' must be text")
    write_config(folder)
    generation.write_text('{"eos_token_id": "x"}')
    assert refusal(folder).startswith("generation_config.json: 'eos_token_id' must be an id")
    generation.unlink()
    (folder / "tokenizer.json").write_text("{}")
    assert refusal(folder).startswith("tokenizer.json: not a readable tokenizer")
    (folder / "tokenizer.json").unlink()
    assert refusal(folder).startswith("tokenizer.json: no such file")
    (folder / "tokenizer.json").mkdir()
    assert refusal(folder).startswith("tokenizer.json: not a regular file but a folder")


def test_a_tokenizer_without_chat_tokens_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_end|>", "<|im_over|>"))
    write_config(folder)
    assert ": its tokenizer has no special token <|im_end|>, which its chat form (chatml)" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
)
def test_what_is_no_regular_file_is_refused_without_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert refusal(folder).startswith(f"{name}: not a regular file")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    assert refusal(folder).startswith(f"{name}: not a regular file")
    (folder / name).unlink()
    (folder / name).symlink_to("nowhere")
    assert refusal(folder).startswith(f"{name}: cannot be read: No such file")


def test_a_name_given_twice_is_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "eos_token": "<|endoftext|>"}')
    assert refusal(folder) == "tokenizer_config.json: the name 'eos_token' occurs twice; keep the right one"
