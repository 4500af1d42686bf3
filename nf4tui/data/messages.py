"""The `messages` format: OpenAI's chat form, as a checked Conversation.

The rules, each refused with the place of what breaks it:
- `messages` is a non-empty array of objects with `role` system, user, assistant or tool;
- a system message only as the first one; it may be empty (which takes the default prompt away);
- `content` is text, or an array of {"type": "text", "text": …} parts, which are joined;
- the content of a user or assistant message is not empty or blank, unless the assistant calls tools, when
  it may also be null or missing; a tool's answer may be empty;
- only an assistant has `tool_calls`: {"function": {"name", "arguments"}}, arguments an object or a string
  that holds one;
- a tool message answers an assistant message or follows another tool message;
- no two assistant messages in a row; at least one assistant message.
Other keys (`name`, `tool_call_id`, …) carry nothing that Qwen's template shows, and are ignored.
"""

import json
from collections.abc import Callable
from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.conversation import ROLES, Conversation, Message, ToolCall
from nf4tui.data.problems import RecordProblemError, shown

Path = strict_json.Path


def parse_messages(record: dict[str, Any], source: str) -> Conversation:
    """Raises RecordProblemError."""
    messages = parse_list(record, "messages", parse_message)
    return Conversation(tuple(messages), parse_tools(record.get("tools")), source)


def parse_list(record: dict[str, Any], key: str, parse: Callable[[Any, Path], Message]) -> list[Message]:
    """The messages in the array `key` of a record, each read by `parse`, in an order that the rules allow.
    Raises RecordProblemError."""
    items = record.get(key)
    if not isinstance(items, list) or not items:
        raise RecordProblemError((key,), f"'{key}' must be a non-empty array; got {shown(items)}")
    messages: list[Message] = []
    for index, item in enumerate(items):
        path: Path = (key, index)
        message = parse(item, path)
        _check_order(messages, message, path)
        messages.append(message)
    if not any(message.role == "assistant" for message in messages):
        raise RecordProblemError(
            (key,), "no assistant message: there is nothing to learn from; add one or drop the record"
        )
    return messages


def parse_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """`tools` of a record: an array of objects, null or missing. Raises RecordProblemError."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RecordProblemError(("tools",), f"'tools' must be an array of objects; got {shown(value)}")
    for index, tool in enumerate(value):
        if not isinstance(tool, dict) or not tool:
            raise RecordProblemError(("tools", index), f"a tool must be an object; got {shown(tool)}")
    return tuple(value)


def parse_message(item: Any, path: Path) -> Message:
    """{"role", "content", "tool_calls"}, by the rules above. Raises RecordProblemError."""
    if not isinstance(item, dict):
        raise RecordProblemError(path, f"a message must be an object; got {shown(item)}")
    for key in ("role",) if item.get("tool_calls") else ("role", "content"):
        if key not in item:
            raise RecordProblemError(path, f"the message has no '{key}'; add it")
    role = item["role"]
    if role not in ROLES:
        raise RecordProblemError(
            (*path, "role"), f"'role' must be one of {', '.join(ROLES)}; got {shown(role)}"
        )
    calls = _parse_calls(item.get("tool_calls"), role, (*path, "tool_calls"))
    content = _parse_content(item.get("content"), (*path, "content"), may_be_null=bool(calls))
    if role in {"user", "assistant"} and not calls and not content.strip():
        raise RecordProblemError(
            (*path, "content"), f"an empty {role} message; give it text or drop the record"
        )
    return Message(role, content, calls)


def _parse_content(value: Any, path: Path, *, may_be_null: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and may_be_null:
        return ""
    if not isinstance(value, list):
        raise RecordProblemError(path, f"'content' must be text; got {shown(value)}")
    parts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RecordProblemError(
                (*path, index),
                f'a part of \'content\' must be {{"type": "text", "text": …}}; got {shown(part)}',
            )
        parts.append(part["text"])
    return "".join(parts)


def _parse_calls(value: Any, role: str, path: Path) -> tuple[ToolCall, ...]:
    if value is None or value == []:
        return ()
    if role != "assistant":
        raise RecordProblemError(path, f"'tool_calls' in a {role} message; only an assistant calls tools")
    if not isinstance(value, list):
        raise RecordProblemError(path, f"'tool_calls' must be an array; got {shown(value)}")
    return tuple(parse_call(call, (*path, index)) for index, call in enumerate(value))


def parse_call(call: Any, path: Path) -> ToolCall:
    """{"name", "arguments"}, alone or under "function". Raises RecordProblemError."""
    function = call.get("function", call) if isinstance(call, dict) else call
    if function is not call:
        path = (*path, "function")
    if not isinstance(function, dict):
        raise RecordProblemError(path, f"a tool call must be an object; got {shown(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise RecordProblemError((*path, "name"), f"a tool call's 'name' must be text; got {shown(name)}")
    if json.dumps(name, ensure_ascii=False) != f'"{name}"':
        raise RecordProblemError(
            (*path, "name"), "a tool call's 'name' must not hold quotes, backslashes or controls"
        )
    if isinstance(arguments, str):
        try:
            arguments = strict_json.decode(arguments)
        except strict_json.JsonProblemError as problem:
            raise RecordProblemError(
                (*path, "arguments"),
                f"'arguments' is a string, but no JSON: {problem.message} (its character {problem.column})",
            ) from None
    if not isinstance(arguments, dict):
        raise RecordProblemError(
            (*path, "arguments"), f"a tool call's 'arguments' must be an object; got {shown(arguments)}"
        )
    return ToolCall(name, arguments)


def _check_order(before: list[Message], message: Message, path: Path) -> None:
    previous = before[-1].role if before else None
    if message.role == "system" and before:
        raise RecordProblemError(
            (*path, "role"), "a system message that is not the first; move it to the start"
        )
    if message.role == "assistant" and previous == "assistant":
        raise RecordProblemError(
            (*path, "role"), "two assistant messages in a row; join them or add what came between"
        )
    if message.role == "tool" and previous not in {"assistant", "tool"}:
        raise RecordProblemError((*path, "role"), "a tool message that answers no assistant message")
