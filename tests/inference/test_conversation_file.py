"""--messages: a JSON object over one or many lines, or the first record of JSONL; cut before an answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from nf4tui.errors import InputError
from nf4tui.inference.conversation_file import read_conversation

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"name": "f"}]}
ANSWERED = {
    "messages": [*ASKED["messages"], {"role": "assistant", "content": "Ho"}],
    "tools": [{"name": "f"}],
}


@pytest.mark.parametrize("record", [ASKED, ANSWERED])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_last_answer_is_left_out_and_one_is_not_needed(
    tmp_path: Path, record: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(record, indent=indent), encoding="utf-8")
    found, count = read_conversation(str(path))
    assert count == 1
    assert [(message.role, message.content) for message in found.messages] == [("user", "Hi")]
    assert found.tools == ({"name": "f"},)


def test_of_jsonl_the_record_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    other = {"messages": [{"role": "user", "content": "Hu"}]}
    path.write_text(f"\n{json.dumps(ANSWERED)}\n[broken\n{json.dumps(other)}\n")
    for number, content in ((1, "Hi"), (3, "Hu")):
        found, count = read_conversation(str(path), number)
        assert (found.messages[0].content, count) == (content, 3)
    with pytest.raises(InputError, match=r"a\.jsonl:3:2:"):
        read_conversation(str(path), 2)
    with pytest.raises(InputError, match=r"--record 4: .*a\.jsonl holds 3 records"):
        read_conversation(str(path), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[1]\n", r":1:1: the line is an array"),
        ('{"messages": []}\n', ":1:14: 'messages' must be a non-empty array"),
        ('{"messages": [{"role": "bot", "content": "x"}]}\n', r":1:\d+: .*bot"),
        ('{"messages": [{"role": "user", "content": "x"}\n', r":1:\d+: "),
        ('{"messages": [\n{"role": "user"}\n]}\n', r":1: the message has no 'content'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as raised:
        read_conversation(str(path))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_conversation(str(tmp_path / "none.json"))
