"""The `conversations` format (ShareGPT), as a Conversation.

    {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": text}, ...],
     "system": text, "tools": [...]}

`from`: system; human or user; gpt, chatgpt or assistant; tool, observation or function_response; and
function_call, an assistant turn whose value is a JSON object {"name", "arguments"} or an array of them.
`tools` may be an array or a string that holds one. Turns written with `role` and `content` are read as those
of `messages`, whose rules hold for all else.
"""

from typing import Any

from nf4tui.data import strict_json
from nf4tui.data.conversation import Conversation, Message
from nf4tui.data.messages import Path, parse_call, parse_list, parse_message, parse_tools
from nf4tui.data.problems import RecordProblemError, shown

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


def parse_conversations(record: dict[str, Any], source: str) -> Conversation:
    """Raises RecordProblemError."""
    messages = parse_list(record, "conversations", _parse_turn)
    system = record.get("system")
    if system is not None and not isinstance(system, str):
        raise RecordProblemError(("system",), f"'system' must be text; got {shown(system)}")
    if system:
        if messages[0].role == "system":
            raise RecordProblemError(("system",), "'system' beside a system turn; keep one of the two")
        messages.insert(0, Message("system", system))
    tools = record.get("tools")
    if isinstance(tools, str):
        tools = _decoded(tools, ("tools",)) if tools.strip() else None
    return Conversation(tuple(messages), parse_tools(tools), source)


def _parse_turn(item: Any, path: Path) -> Message:
    if isinstance(item, dict) and "role" in item and "from" not in item:
        return parse_message(item, path)
    if not isinstance(item, dict):
        raise RecordProblemError(path, f"a turn must be an object; got {shown(item)}")
    for key in ("from", "value"):
        if key not in item:
            raise RecordProblemError(path, f"the turn has no '{key}'; add it")
    speaker, value = item["from"], item["value"]
    role = _ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise RecordProblemError(
            (*path, "from"), f"'from' must be one of {', '.join(_ROLES)}; got {shown(speaker)}"
        )
    if speaker == "function_call":
        return _calling(value, (*path, "value"))
    if not isinstance(value, str):
        raise RecordProblemError((*path, "value"), f"'value' must be text; got {shown(value)}")
    if role in {"user", "assistant"} and not value.strip():
        raise RecordProblemError(
            (*path, "value"), f"an empty {speaker} turn; give it text or drop the record"
        )
    return Message(role, value)


def _calling(value: Any, path: Path) -> Message:
    calls = _decoded(value, path) if isinstance(value, str) else value
    calls = calls if isinstance(calls, list) else [calls]
    if not calls:
        raise RecordProblemError(path, "a function_call without a call; drop the turn")
    try:
        return Message("assistant", "", tuple(parse_call(call, ()) for call in calls))
    except RecordProblemError as problem:
        # The path inside a JSON string has no column of its own.
        raise RecordProblemError(path, problem.message) from None


def _decoded(text: str, path: Path) -> Any:
    try:
        return strict_json.decode(text)
    except strict_json.JsonProblemError as problem:
        raise RecordProblemError(
            path, f"must be JSON: {problem.message} (its character {problem.column})"
        ) from None
