"""What a record is, whatever its format: a conversation of messages with tool calls, or a document. Data only."""

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
    """`tools`: the functions offered, as JSON objects. `source`: `file:line`, for reports.
    `completion`: index of the first message of a completion, None where the record has none."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    source: str = ""
    completion: int | None = None

    def supervised(self, supervise: str) -> tuple[int, ...]:
        """Indices of the assistant messages to learn: `all`, the `last` one, or those of the `completion`,
        which is the last one where the record has no completion."""
        answers = [index for index, message in enumerate(self.messages) if message.role == "assistant"]
        if supervise == "all":
            return tuple(answers)
        if supervise == "completion" and self.completion is not None:
            return tuple(index for index in answers if index >= self.completion)
        return tuple(answers[-1:])


@dataclass(frozen=True, slots=True)
class Document:
    """Running text without turns, all of it to be learnt. `source` as a conversation's."""

    text: str
    source: str = ""


Record = Conversation | Document


def _whole_numbers(value: Any) -> Any:
    """`value` with 1.0 as 1, as JSON has one kind of number."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
