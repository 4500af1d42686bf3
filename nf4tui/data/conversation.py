"""A conversation as every format ends up: messages with text, tool calls and tools. Data only."""

import json
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, eq=False)
class ToolCall:
    """A function's name and its arguments, a JSON object with its keys in the order written.

    Equal when the names are and the arguments are the same JSON value: the order of keys does not matter,
    1 equals 1.0, and true does not equal 1.
    """

    name: str
    arguments: dict[str, Any]

    @property
    def _canonical(self) -> tuple[str, str]:
        return self.name, json.dumps(_whole_numbers(self.arguments), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCall) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)


@dataclass(frozen=True, slots=True)
class Message:
    """`content` may be empty where there are tool calls, and for system and tool messages."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """`tools`: the functions offered, as JSON objects. `source`: `file:line`, for reports."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    source: str = ""


def _whole_numbers(value: Any) -> Any:
    """`value` with 1.0 as 1, as JSON has one kind of number."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
