"""Formats, and the rules for what a record must hold, each with the place of what breaks it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.records import RecordFile, detect_format
from nf4tui.errors import InputError

USER = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello."}
GOOD = {"messages": [USER, HELLO]}
PAIR = {"prompt": "2+2?", "completion": "4"}


def write(folder: Path, *records: Any) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def read(path: str, format_name: str = "auto") -> list[Conversation]:
    return list(RecordFile(path, format_name))


def refusal(folder: Path, *records: Any, format_name: str = "auto") -> str:
    with pytest.raises(InputError) as caught:
        read(write(folder, *records), format_name)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


def test_messages_become_a_conversation(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    record = {
        "id": 7,
        "messages": [
            {"role": "system", "content": ""},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
                "name": "x",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'},
                    },
                    {"name": "g", "arguments": {"x": [1]}},
                ],
            },
            {"role": "tool", "content": "", "tool_call_id": "1"},
            {"role": "tool", "content": "y"},
            HELLO,
        ],
        "tools": [tool],
    }
    path = write(tmp_path, record)
    calls = (ToolCall("f", {"b": 1, "a": 2}), ToolCall("g", {"x": [1]}))
    assert read(path) == [
        Conversation(
            (
                Message("system", ""),
                Message("user", "a b"),
                Message("assistant", "", calls),
                Message("tool", ""),
                Message("tool", "y"),
                Message("assistant", "Hello."),
            ),
            (tool,),
            f"{path}:1",
        )
    ]
    assert list(read(path)[0].messages[2].tool_calls[0].arguments) == ["b", "a"]


def test_prompt_and_completion_become_one_turn_each(tmp_path: Path) -> None:
    path = write(tmp_path, PAIR)
    expected = (Message("user", "2+2?"), Message("assistant", "4"))
    assert read(path) == [Conversation(expected, (), f"{path}:1", completion=1)]


def test_the_format_is_told_from_the_keys() -> None:
    assert detect_format({"messages": [], "text": ""}) == "messages"
    assert detect_format({"conversations": []}) == "conversations"
    assert detect_format({"prompt": "", "completion": ""}) == "prompt-completion"
    assert detect_format({"instruction": "", "input": "", "output": ""}) == "alpaca"
    assert detect_format({"text": ""}) == "text"
    assert detect_format({"prompt": "", "response": ""}) is None


def test_mixed_formats_are_refused_with_both_first_lines(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD, GOOD, PAIR)
    assert message == (
        "data.jsonl:3:1: this record is in the format prompt-completion, but the file is messages"
        " since line 1;"
        " put each format in a file of its own, or name one with --format"
    )


def test_a_named_format_is_taken_whatever_else_a_record_holds(tmp_path: Path) -> None:
    path = write(tmp_path, {**GOOD, **PAIR}, PAIR)
    assert [len(c.messages) for c in read(path, "prompt-completion")] == [2, 2]
    assert refusal(tmp_path, PAIR, format_name="messages").startswith(
        "data.jsonl:1:1: the record has no 'messages'"
    )


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, GOOD, format_name="sharegpt").startswith(
        "--format sharegpt: must be auto, messages,"
    )


def test_a_record_without_known_keys_is_refused_with_those_it_has(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"question": "x", "answer": "y"})
    assert message.startswith('data.jsonl:1:1: the record has the keys "question", "answer", but needs')
    assert refusal(tmp_path, {}).startswith("data.jsonl:1:1: the record has the keys none")


def chat(*messages: Any, **keys: Any) -> dict[str, Any]:
    return {"messages": list(messages), **keys}


def calling(call: Any) -> dict[str, Any]:
    return chat(USER, {"role": "assistant", "content": "", "tool_calls": [call]})


RULES = [
    (
        chat(USER, {"role": "bot", "content": "x"}),
        '"bot"',
        "'role' must be one of system, user, assistant, tool",
    ),
    (chat(USER, {"role": 3, "content": "x"}), "3,", "'role' must be one of"),
    (chat(USER, {"content": "x"}), '{"content"', "the message has no 'role'"),
    (chat(USER, {"role": "assistant"}), '{"role": "assistant"', "the message has no 'content'"),
    (chat(USER, HELLO, HELLO), '"assistant", "content": "Hello."}]', "two assistant messages in a row"),
    (chat(USER), "[{", "no assistant message"),
    (chat(), "[]", "'messages' must be a non-empty array"),
    ({"messages": "x"}, '"x"', "'messages' must be a non-empty array"),
    ({"messages": None}, "null", "'messages' must be a non-empty array"),
    (
        chat(USER, {"role": "system", "content": "x"}, HELLO),
        '"system"',
        "a system message that is not the first",
    ),
    (chat(USER, {"role": "assistant", "content": ""}), '""', "an empty assistant message"),
    (chat(USER, {"role": "assistant", "content": " \n"}), '" \\n"', "an empty assistant message"),
    (chat({"role": "user", "content": ""}, HELLO), '""', "an empty user message"),
    (chat({"role": "user", "content": []}, HELLO), "[]", "an empty user message"),
    (chat({"role": "user", "content": 5}, HELLO), "5", "'content' must be text; got 5"),
    (chat({"role": "user", "content": None}, HELLO), "null", "'content' must be text; got null"),
    (
        chat({"role": "user", "content": [{"type": "image_url"}]}, HELLO),
        '{"type"',
        "a part of 'content' must be",
    ),
    (chat({"role": "user", "content": ["x"]}, HELLO), '"x"', "a part of 'content' must be"),
    (chat("x", HELLO), '"x"', "a message must be an object"),
    (chat({"role": "tool", "content": "x"}, HELLO), '"tool"', "a tool message that answers no assistant"),
    (
        chat(USER, {"role": "tool", "content": "x"}, HELLO),
        '"tool"',
        "a tool message that answers no assistant",
    ),
    (chat({**USER, "tool_calls": [{}]}, HELLO), "[{}]", "'tool_calls' in a user message"),
    (chat(USER, {**HELLO, "tool_calls": {"a": 1}}), '{"a"', "'tool_calls' must be an array"),
    (calling("x"), '"x"', "a tool call must be an object"),
    (calling({"function": "x"}), '"x"', "a tool call must be an object"),
    (calling({"function": {"arguments": {}}}), '{"arguments"', "a tool call's 'name' must be text"),
    (calling({"name": 'a"b', "arguments": {}}), '"a\\"b"', "a tool call's 'name' must not hold quotes"),
    (calling({"name": "f"}), '{"name"', "a tool call's 'arguments' must be an object; got null"),
    (
        calling({"name": "f", "arguments": "[1]"}),
        '"[1]"',
        "a tool call's 'arguments' must be an object; got [1]",
    ),
    (calling({"name": "f", "arguments": "{a: 1}"}), '"{a: 1}"', "'arguments' is a string, but no JSON"),
    (
        calling({"name": "f", "arguments": '{"a": NaN}'}),
        '"{\\"a\\": NaN}"',
        "'arguments' is a string, but no JSON: NaN",
    ),
    (chat(USER, HELLO, tools={"a": 1}), '{"a"', "'tools' must be an array of objects"),
    (chat(USER, HELLO, tools=["f"]), '"f"', "a tool must be an object"),
    ({"prompt": 5, "completion": "x"}, "5", "'prompt' must be text; got 5"),
    ({"prompt": "x", "completion": None}, "null", "'completion' must be text; got null"),
    ({"prompt": "x", "completion": ""}, '""', "an empty 'completion'"),
    ({"prompt": " ", "completion": "x"}, '" "', "an empty 'prompt'"),
]


@pytest.mark.parametrize(
    ("record", "place", "expected"), RULES, ids=[f"{e[:30]}-{p[:9]}" for _, p, e in RULES]
)
def test_a_rule_that_is_broken_is_named_with_its_column(
    tmp_path: Path, record: dict[str, Any], place: str, expected: str
) -> None:
    text = json.dumps(record)
    message = refusal(tmp_path, record if "prompt" in record else GOOD, record)
    location, _, said = message.partition(": ")
    assert location == f"data.jsonl:{'1' if 'prompt' in record else '2'}:{text.rindex(place) + 1}"
    assert said.startswith(expected)


def test_bad_lines_are_stepped_over_when_asked_and_mixed_formats_are_not(tmp_path: Path) -> None:
    found: list[str] = []
    path = write(tmp_path, chat(USER), GOOD, {"x": 1}, [1], GOOD)
    file = RecordFile(path, on_bad=lambda error: found.append(str(error)))
    assert len(list(file)) == 2
    assert file.records == 5
    assert [line.split(":")[1] for line in found] == ["1", "3", "4"]
    with pytest.raises(InputError, match="this record is in the format prompt-completion"):
        list(RecordFile(write(tmp_path, GOOD, PAIR), on_bad=lambda error: None))


def test_a_file_without_any_format_says_what_is_needed(tmp_path: Path) -> None:
    file = RecordFile(write(tmp_path, {"x": 1}), on_bad=lambda error: None)
    assert list(file) == [] and file.format is None
