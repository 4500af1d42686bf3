"""Which token ends an answer, and what a user is told where the model's files say otherwise."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nf4tui.data.chat import tokenize
from nf4tui.data.conversation import Conversation, Message
from nf4tui.data.tokenizer import ChatTokenizer, load_tokenizer

CHAT = Conversation((Message("user", "Hi"), Message("assistant", "Hello.")))


def tokenizer_of(
    model_dir: Path, folder: Path, template: str | None, eos: str | None, generation: Any
) -> ChatTokenizer:
    folder.mkdir()
    shutil.copy(model_dir / "tokenizer.json", folder)
    fields = {"eos_token": eos, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    ids = load_tokenizer(model_dir).control_tokens
    if generation is not None:
        (folder / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [ids[name] for name in generation]})
        )
    return load_tokenizer(folder)


@pytest.mark.parametrize("generation", [None, ["<|im_end|>"], ["<|im_end|>", "<|endoftext|>"]])
def test_an_instruct_models_ends_need_no_word(
    model_dir: Path, tmp_path: Path, qwen25_template: str, generation: list[str] | None
) -> None:
    tokenizer = tokenizer_of(model_dir, tmp_path / "m", qwen25_template, "<|im_end|>", generation)
    assert tokenizer.notes == ()
    assert tokenizer.stop_ids[0] == tokenizer.control_token_id("<|im_end|>")
    assert set(tokenizer.stop_ids) == {
        tokenizer.control_token_id(name) for name in generation or ["<|im_end|>"]
    }


def test_a_base_model_is_told_by_its_end_and_answers_end_as_in_chat(
    model_dir: Path, tmp_path: Path, qwen25_template: str
) -> None:
    """As Qwen2.5's base models are published: with the template, but ending with <|endoftext|>."""
    end = "<|endoftext|>"
    tokenizer = tokenizer_of(model_dir, tmp_path / "m", qwen25_template, end, [end])
    (note,) = tokenizer.notes
    assert f"end a text with {end}, as a base model's do" in note
    assert f"<|im_end|> (id {tokenizer.end_token_id}), which it may never have seen" in note
    assert tokenizer.stop_ids == (tokenizer.end_token_id, tokenizer.control_token_id(end))
    (segments,) = tokenizer.form.render([CHAT], "all")
    assert isinstance(segments, list)
    ids = tokenize(segments, tokenizer).ids.tolist()
    assert ids.count(tokenizer.control_token_id(end)) == 0


def test_a_model_without_a_template_is_said_to_be_written_as_chatml(model_dir: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(model_dir, tmp_path / "m", None, "<|endoftext|>", ["<|endoftext|>"])
    assert [note.split(",")[0] for note in tokenizer.notes] == [
        "the model has no chat template",
        "the model's files end a text with <|endoftext|>",
    ]
    (segments,) = tokenizer.form.render([CHAT], "all")
    assert isinstance(segments, list)
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
    assert "".join(segment.text for segment in segments) == text


def test_files_that_contradict_each_other_are_told_with_the_end_in_use(
    model_dir: Path, tmp_path: Path, qwen25_template: str
) -> None:
    tokenizer = tokenizer_of(model_dir, tmp_path / "m", qwen25_template, "<|endoftext|>", ["<|im_end|>"])
    assert tokenizer.notes == (
        "tokenizer_config.json ends with <|endoftext|>, generation_config.json with <|im_end|>; answers are"
        " trained to end with <|im_end|>",
    )


def test_a_template_with_another_end_is_told_against_the_models_own(model_dir: Path, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(model_dir, tmp_path / "m", template, "<|im_end|>", None)
    assert tokenizer.form.end == "<|endoftext|>"
    assert tokenizer.end_token_id == tokenizer.control_token_id("<|endoftext|>")
    (note,) = tokenizer.notes
    assert "trained to end with <|endoftext|>" in note
