"""ChatML as Qwen2 and Qwen2.5 publish it, with the loss mask made while it is written.

A turn is `<|im_start|>role\\n` content `<|im_end|>\\n`. What an assistant turn supervises is its content,
its tool calls and the one `<|im_end|>` that generation stops at; not its header, not the newline after it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.segments import RenderError, Segment

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
CALL_EXAMPLE = '{"name": <function-name>, "arguments": <args-json-object>}'

_TOOLS_HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
)


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """What differs between the published forms.

    name: `qwen2.5`, which has tools, `qwen2` or plain `chatml`, which have none. default_system: the prompt of a
    conversation without one, None: no system turn; default_system_with_tools: the same beside tools, empty
    where the form has none. example: the tool-call example of the tools block (published with one brace,
    and with two).
    """

    name: str
    default_system: str | None
    default_system_with_tools: str
    tools: bool
    example: str


PLAIN = ChatStyle("chatml", None, "", False, CALL_EXAMPLE)
# Plain ChatML for other programs, where a model has no template of its own.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
QWEN25 = ChatStyle("qwen2.5", _QWEN, _QWEN, True, CALL_EXAMPLE)


def render(conversation: Conversation, style: ChatStyle, supervise: str = "all") -> list[Segment]:
    """The conversation in the model's chat form.

    supervise: `all`, `last` or `completion` (Conversation.supervised).
    Raises RenderError if the style has no tools and the conversation needs them.
    """
    _check_tools(conversation, style)
    supervised = conversation.supervised(supervise)
    segments = list(_system_turn(conversation, style))
    for index, message in enumerate(conversation.messages):
        if message.role == "assistant":
            segments += _assistant_turn(message, supervised=index in supervised)
        elif message.role == "tool":
            segments += _tool_answer(conversation.messages, index)
        elif message.role == "user":
            segments += _turn("user", message.content)
    return segments


def answer_text(message: Message) -> str:
    """An assistant message as the model has to write it: its content, then its tool calls."""
    calls = [f"{CALL_OPEN}\n{_call_json(call)}\n{CALL_CLOSE}" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls)


def _turn(role: str, content: str) -> list[Segment]:
    return [
        Segment(TURN_START, control=True),
        Segment(f"{role}\n{content}"),
        Segment(TURN_END, control=True),
        Segment("\n"),
    ]


def _system_turn(conversation: Conversation, style: ChatStyle) -> list[Segment]:
    first = conversation.messages[0] if conversation.messages else None
    given = first.content if first and first.role == "system" else None
    if not conversation.tools:
        prompt = style.default_system if given is None else given
        return [] if prompt is None else _turn("system", prompt)
    tools = "".join(f"\n{_json(tool)}" for tool in conversation.tools)
    start = style.default_system_with_tools if given is None else given
    return _turn("system", f"{start}{_TOOLS_HEAD}{tools}{_TOOLS_TAIL}{style.example}\n{CALL_CLOSE}")


def _assistant_turn(message: Message, *, supervised: bool) -> list[Segment]:
    return [
        Segment(TURN_START, control=True),
        Segment("assistant\n"),
        Segment(answer_text(message), supervised=supervised),
        Segment(TURN_END, control=True, supervised=supervised),
        Segment("\n"),
    ]


def _tool_answer(messages: Sequence[Message], index: int) -> Iterator[Segment]:
    """Answers in a row share one user turn."""
    if index == 0 or messages[index - 1].role != "tool":
        yield Segment(TURN_START, control=True)
        yield Segment("user")
    yield Segment(f"\n<tool_response>\n{messages[index].content}\n</tool_response>")
    if index + 1 == len(messages) or messages[index + 1].role != "tool":
        yield Segment(TURN_END, control=True)
        yield Segment("\n")


def _call_json(call: ToolCall) -> str:
    return f'{{"name": "{call.name}", "arguments": {_json(call.arguments)}}}'


def _json(value: Any) -> str:
    """As transformers' `tojson`: the keys' order kept, no escapes beyond JSON's."""
    return json.dumps(value, ensure_ascii=False)


def _check_tools(conversation: Conversation, style: ChatStyle) -> None:
    if style.tools:
        return
    if conversation.tools or any(m.role == "tool" or m.tool_calls for m in conversation.messages):
        raise RenderError(
            f"the record uses tools, which this model's chat form ({style.name}) does not have;"
            " use a Qwen2.5 model, or write the calls as text"
        )
