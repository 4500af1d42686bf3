"""Text, ids and masks equal those recorded with transformers (benchmarks/peers/make_renderings.py)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nf4tui.data.chat import tokenize
from nf4tui.data.chat_form import ChatForm, NativeForm
from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.segments import RenderError, Segment, text_of
from nf4tui.data.template_form import TemplateForm
from nf4tui.data.tokenizer import ChatTokenizer, load_tokenizer

HERE = Path(__file__).parent
SAMPLE_MODEL = HERE.parents[1] / "sample_data/model"
RECORDINGS = ("qwen2", "qwen2.5", "qwen2.5-base", "qwen2.5-double-braces")


def conversation(record: dict[str, Any]) -> Conversation:
    """As parse_messages makes it, without its rules: transformers renders what training refuses, too."""
    messages = []
    for item in record["messages"]:
        functions = [call["function"] for call in item.get("tool_calls", ())]
        calls = tuple(ToolCall(function["name"], function["arguments"]) for function in functions)
        messages.append(Message(item["role"], item["content"], calls))
    return Conversation(tuple(messages), tuple(record.get("tools", ())))


CONVERSATIONS = {
    name: conversation(record)
    for name, record in json.loads((HERE / "renderings/conversations.json").read_text("utf-8")).items()
}


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request: pytest.FixtureRequest) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((HERE / f"renderings/{request.param}.json").read_text("utf-8"))
    return recorded


@pytest.fixture(scope="module")
def model_tokenizer(recording: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("model")
    shutil.copy(SAMPLE_MODEL / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(recording["template"], encoding="utf-8")
    return load_tokenizer(folder)


def assert_as_recorded(form: ChatForm, tokenizer: ChatTokenizer, recorded: dict[str, Any]) -> list[str]:
    """Checks every conversation that the form can render; returns the others' names."""
    names = list(recorded)
    refused = []
    for name, segments in zip(names, form.render([CONVERSATIONS[n] for n in names], "all"), strict=True):
        if isinstance(segments, RenderError):
            refused.append(name)
            continue
        assert text_of(segments) == recorded[name]["text"], name
        tokens = tokenize(segments, tokenizer)
        assert tokens.ids.tolist() == recorded[name]["ids"], name
        assert "".join("01"[flag] for flag in tokens.supervised.tolist()) == recorded[name]["supervised"], (
            name
        )
    return refused


def test_at_least_forty_conversations_are_recorded() -> None:
    assert len(CONVERSATIONS) >= 40


def test_native_rendering_is_as_recorded(recording: dict[str, Any], model_tokenizer: ChatTokenizer) -> None:
    assert isinstance(model_tokenizer.form, NativeForm)
    assert assert_as_recorded(model_tokenizer.form, model_tokenizer, recording["renderings"]) == []


def test_rendering_by_the_template_itself_is_as_recorded(
    recording: dict[str, Any], model_tokenizer: ChatTokenizer
) -> None:
    form = TemplateForm(recording["template"], {}, list(model_tokenizer.control_tokens))
    assert form.end == "<|im_end|>"
    refused = assert_as_recorded(form, model_tokenizer, recording["renderings"])
    # With no message before a first answer the templates write no prompt that the answer could follow.
    assert refused == ["an assistant first"]


def test_qwen2_refuses_all_that_uses_tools(recording: dict[str, Any], model_tokenizer: ChatTokenizer) -> None:
    unrecorded = [CONVERSATIONS[name] for name in CONVERSATIONS if name not in recording["renderings"]]
    assert bool(unrecorded) == (model_tokenizer.form.name == "qwen2")
    for form in (
        model_tokenizer.form,
        TemplateForm(recording["template"], {}, list(model_tokenizer.control_tokens)),
    ):
        rendered: list[list[Segment] | RenderError] = form.render(unrecorded, "all")
        assert all(isinstance(result, RenderError) for result in rendered)


def test_the_prompt_is_the_beginning_of_the_whole(
    recording: dict[str, Any], model_tokenizer: ChatTokenizer
) -> None:
    foreign = TemplateForm(recording["template"], {}, list(model_tokenizer.control_tokens))
    for name in ("two turns", "control tokens in an answer"):
        whole = CONVERSATIONS[name]
        before = Conversation(whole.messages[:-1], whole.tools)
        native = model_tokenizer.form.prompt(before)
        assert text_of(native) == text_of(foreign.prompt(before))
        ids = tokenize(native, model_tokenizer).ids.tolist()
        assert ids == tokenize(foreign.prompt(before), model_tokenizer).ids.tolist()
        assert recording["renderings"][name]["ids"][: len(ids)] == ids
