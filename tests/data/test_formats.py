"""ShareGPT, Alpaca, documents and lists of messages: what each record becomes, and what is refused where."""

import json
from pathlib import Path
from typing import Any

import pytest

from nf4tui.data.conversation import Conversation, Document, Message, Record, ToolCall
from nf4tui.data.jsonl import BadLineError
from nf4tui.data.records import RecordFile
from nf4tui.data.samples import DataOptions, load_samples
from nf4tui.data.tokenizer import ChatTokenizer

USER, ANSWER = Message("user", "Hi"), Message("assistant", "Hello.")


def read(folder: Path, *records: Any, format_name: str = "auto") -> list[Record]:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return list(RecordFile(str(path), format_name))


def messages(folder: Path, record: dict[str, Any]) -> tuple[Message, ...]:
    (found,) = read(folder, record)
    assert isinstance(found, Conversation)
    return found.messages


def refusal(folder: Path, record: dict[str, Any], format_name: str = "auto") -> str:
    with pytest.raises(BadLineError) as caught:
        read(folder, record, format_name=format_name)
    return str(caught.value).removeprefix(f"{folder}/")


def turns(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": speaker, "value": value} for speaker, value in pairs]}


@pytest.mark.parametrize("human", ["human", "user"])
@pytest.mark.parametrize("machine", ["gpt", "chatgpt", "assistant"])
def test_sharegpt_turns_become_messages(tmp_path: Path, human: str, machine: str) -> None:
    record = turns(("system", "s"), (human, "Hi"), (machine, "Hello."))
    assert messages(tmp_path, record) == (Message("system", "s"), USER, ANSWER)


def test_sharegpt_calls_and_results_become_tool_calls(tmp_path: Path) -> None:
    call = '{"name": "f", "arguments": {"a": 1}}'
    record = turns(("human", "Hi"), ("function_call", call), ("observation", "4"), ("gpt", "Hello."))
    (found,) = read(tmp_path, {**record, "system": "s", "tools": '[{"name": "f"}]'})
    assert found == Conversation(
        (
            Message("system", "s"),
            USER,
            Message("assistant", "", (ToolCall("f", {"a": 1}),)),
            Message("tool", "4"),
            ANSWER,
        ),
        ({"name": "f"},),
        f"{tmp_path}/data.jsonl:1",
    )
    several = turns(("human", "Hi"), ("function_call", [json.loads(call)] * 2))
    assert len(messages(tmp_path, several)[1].tool_calls) == 2


def test_conversations_may_be_written_with_role_and_content(tmp_path: Path) -> None:
    record = {
        "conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    }
    assert messages(tmp_path, record) == (USER, ANSWER)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (turns(("human", "Hi")), "1:19: no assistant message"),
        (turns(("human", "Hi"), ("gpt", "")), "an empty gpt turn"),
        (turns(("human", "Hi"), ("gpt", None)), "'value' must be text; got null"),
        (turns(("human", "Hi"), ("bot", "x")), "'from' must be one of system, human,"),
        (turns(("human", "Hi"), (["gpt"], "x")), "'from' must be one of system, human,"),
        (turns(("human", "Hi"), ("gpt", "a"), ("gpt", "b")), "two assistant messages in a row"),
        (turns(("human", "Hi"), ("function_call", "{")), "must be JSON: "),
        (turns(("human", "Hi"), ("function_call", "[]")), "a function_call without a call"),
        (turns(("human", "Hi"), ("function_call", '{"name": "f"}')), "'arguments' must be an object"),
        ({"conversations": [{"value": "x"}]}, "the turn has no 'from'"),
        ({"conversations": ["x"]}, 'a turn must be an object; got "x"'),
        ({"conversations": {}}, "'conversations' must be a non-empty array; got {}"),
        ({**turns(("system", "a"), ("gpt", "b")), "system": "c"}, "'system' beside a system turn"),
        ({**turns(("human", "a"), ("gpt", "b")), "tools": "{"}, "must be JSON"),
        ({**turns(("human", "a"), ("gpt", "b")), "tools": "{}"}, "'tools' must be an array"),
    ],
)
def test_what_no_sharegpt_record_may_hold_is_refused(
    tmp_path: Path, record: dict[str, Any], says: str
) -> None:
    message = refusal(tmp_path, record)
    assert message.startswith("data.jsonl:1:") and says in message


def test_alpaca_records_become_one_question_and_its_answer(tmp_path: Path) -> None:
    record = {"instruction": "Hi", "output": "Hello."}
    assert messages(tmp_path, record) == (USER, ANSWER)
    for empty in ("", None, "  \n"):
        assert messages(tmp_path, {**record, "input": empty}) == (USER, ANSWER)
    question = Message("user", "Hi\n\nthere")
    assert messages(tmp_path, {**record, "input": "there"}) == (question, ANSWER)
    assert messages(tmp_path, {"instruction": "Hi", "context": "there", "response": "Hello."}) == (
        question,
        ANSWER,
    )
    assert messages(tmp_path, {**record, "system": "s", "history": [["a", "b"]]}) == (
        Message("system", "s"),
        Message("user", "a"),
        Message("assistant", "b"),
        USER,
        ANSWER,
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instruction": " "}, "an empty 'instruction'"),
        ({"output": ""}, "an empty 'output'"),
        ({"output": 4}, "'output' must be text; got 4"),
        ({"input": ["x"]}, "'input' must be text"),
        ({"response": "x"}, "the record has 'output' and 'response'; keep one"),
        ({"input": "x", "context": "x"}, "the record has 'input' and 'context'; keep one"),
        ({"history": "x"}, "'history' must be an array of pairs"),
        ({"history": [["a"]]}, "a turn of 'history' must be [question, answer]"),
        ({"system": 1}, "'system' must be text; got 1"),
    ],
)
def test_what_no_alpaca_record_may_hold_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    record = {"instruction": "Hi", "output": "Hello.", **change}
    assert says in refusal(tmp_path, record)


def test_alpaca_without_an_answer_is_refused_where_the_format_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"instruction": "Hi"}, "alpaca")
    assert message == "data.jsonl:1:1: the record has no 'output', which --format alpaca needs"


def test_prompt_and_completion_may_be_messages(tmp_path: Path) -> None:
    def message(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    prompt = [message("user", "a"), message("assistant", "b"), message("user", "Hi")]
    completion = [message("assistant", "Hello."), message("user", "c"), message("assistant", "d")]
    (found,) = read(tmp_path, {"prompt": prompt, "completion": completion})
    assert isinstance(found, Conversation)
    assert (len(found.messages), found.completion) == (6, 3)
    assert found.supervised("completion") == (3, 5)
    assert (found.supervised("last"), found.supervised("all")) == ((5,), (1, 3, 5))
    assert "'completion' must be an array" in refusal(tmp_path, {"prompt": prompt, "completion": "x"})
    assert "'completion' has no assistant" in refusal(tmp_path, {"prompt": prompt, "completion": prompt[:1]})
    bad = refusal(tmp_path, {"prompt": prompt, "completion": [message("assistant", "")]})
    text = (tmp_path / "data.jsonl").read_text()
    assert bad.startswith(f"data.jsonl:1:{text.rindex(chr(34) * 2) + 1}: an empty assistant message")


def test_a_document_is_learnt_whole_with_the_token_that_ends_documents(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    text = "Once upon a time.\n<|im_end|> They lived."
    assert read(tmp_path, {"text": text}) == [Document(text, f"{tmp_path}/data.jsonl:1")]
    dataset = load_samples([tmp_path / "data.jsonl"], tokenizer)
    (sample,) = dataset.samples
    assert sample.ids.tolist() == [*tokenizer.encode_text(text), tokenizer.control_token_id("<|endoftext|>")]
    assert sample.supervised.tolist() == [False] + [True] * (len(sample.ids) - 1)
    assert dataset.report.control_tokens.count == 1
    cut = DataOptions(max_seq_len=5, overlong="truncate")
    (sample,) = load_samples([tmp_path / "data.jsonl"], tokenizer, cut).samples
    assert sample.ids.tolist() == tokenizer.encode_text(text)[:5]


@pytest.mark.parametrize(
    ("text", "says"), [("", "an empty 'text'"), (" \n", "an empty 'text'"), (None, "got null"), (1, "got 1")]
)
def test_a_document_without_text_is_refused(tmp_path: Path, text: Any, says: str) -> None:
    assert says in refusal(tmp_path, {"text": text})
