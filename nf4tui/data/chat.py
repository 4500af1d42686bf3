"""ChatML as Qwen2 and Qwen2.5 publish it, with the loss mask made while it is written.

A turn is `<|im_start|>role\\n` content `<|im_end|>\\n`. What an assistant turn supervises is its content,
its tool calls and the one `<|im_end|>` that generation stops at; not its header, not the newline after it.

Token ids are those of the whole rendered text: all text between two control tokens is encoded in one go,
since merges do not stop at the header's newline. A token that covers characters from both sides of the
mask's border (content that starts with a newline can merge with the header's) is not supervised.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.data import strict_json
from nf4tui.data.chat_template import ChatStyle
from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.tokenizer import TURN_END, TURN_START, ChatTokenizer
from nf4tui.errors import InputError

SUPERVISE = ("last", "all", "completion")

_TOOLS_HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
)
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the rendered text: plain text, or one control token."""

    text: str
    control: bool = False
    supervised: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """ids: [n] int32. supervised: [n] bool."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.bool_]


def render(conversation: Conversation, style: ChatStyle, supervise: str = "all") -> list[Segment]:
    """The conversation in the model's chat form.

    supervise: `all` assistant turns, or the `last` one only; `completion` is the completion of a
    prompt-completion record, which is its last turn, and means `last` for other records.
    Raises InputError if the style has no tools and the conversation needs them.
    """
    _check_tools(conversation, style)
    last = last_assistant(conversation)
    segments = list(_system_turn(conversation, style))
    for index, message in enumerate(conversation.messages):
        if message.role == "assistant":
            segments += _assistant_turn(message, supervised=supervise == "all" or index == last)
        elif message.role == "tool":
            segments += _tool_answer(conversation.messages, index)
        elif message.role == "user":
            segments += _turn("user", message.content)
    return segments


def text_of(segments: Iterable[Segment]) -> str:
    """What transformers' apply_chat_template gives for the same conversation."""
    return "".join(segment.text for segment in segments)


def tokenize(segments: Iterable[Segment], tokenizer: ChatTokenizer) -> Tokens:
    """Ids and mask of rendered segments."""
    ids: list[int] = []
    supervised: list[bool] = []
    for control, group in groupby(segments, key=lambda segment: segment.control):
        if control:
            for segment in group:
                ids.append(tokenizer.control_token_id(segment.text))
                supervised.append(segment.supervised)
        else:
            pieces = list(group)
            encoding = tokenizer.encode(text_of(pieces))
            ids += encoding.ids
            supervised += _span_mask(pieces, encoding.spans)
    return Tokens(np.array(ids, np.int32), np.array(supervised, np.bool_))


def prompt_ids(conversation: Conversation, style: ChatStyle, tokenizer: ChatTokenizer) -> list[int]:
    """Ids of everything before the last assistant turn, and the header of the turn to generate. Where there
    is no assistant turn after the last other one, of the whole conversation and that header."""
    messages = conversation.messages
    cut = last_assistant(conversation) if messages and messages[-1].role == "assistant" else len(messages)
    before = Conversation(messages[:cut], conversation.tools, conversation.source)
    segments = [*render(before, style), Segment(TURN_START, control=True), Segment("assistant\n")]
    return [int(token) for token in tokenize(segments, tokenizer).ids]


def last_assistant(conversation: Conversation) -> int:
    """Index of the last assistant message, -1 without one."""
    roles = [message.role for message in conversation.messages]
    return max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)


def answer_text(message: Message) -> str:
    """An assistant message as the model has to write it: its content, then its tool calls."""
    calls = [f"{_CALL_OPEN}\n{_call_json(call)}\n{_CALL_CLOSE}" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls)


def parse_tool_calls(text: str) -> list[ToolCall] | None:
    """The tool calls in an answer: [] if it has no tag of one, None if any is malformed. Between the tags
    stands one JSON object with `name`, text, and `arguments`, an object, and nothing else."""
    calls = []
    pieces = text.split(_CALL_OPEN)
    if _CALL_CLOSE in pieces[0]:
        return None
    for piece in pieces[1:]:
        body, close, rest = piece.partition(_CALL_CLOSE)
        try:
            value = strict_json.decode(body)
        except strict_json.JsonProblemError:
            return None
        if (
            not close
            or _CALL_CLOSE in rest
            or not isinstance(value, dict)
            or value.keys() != {"name", "arguments"}
        ):
            return None
        if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
            return None
        calls.append(ToolCall(value["name"], value["arguments"]))
    return calls


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
        return _turn("system", style.default_system if given is None else given)
    tools = "".join(f"\n{_json(tool)}" for tool in conversation.tools)
    prompt = style.default_system_with_tools if given is None else given
    return _turn("system", f"{prompt}{_TOOLS_HEAD}{tools}{_TOOLS_TAIL}{style.example}\n{_CALL_CLOSE}")


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


def _span_mask(pieces: Sequence[Segment], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """A token is supervised if all characters that it covers are."""
    flags = np.concatenate([np.full(len(piece.text), piece.supervised) for piece in pieces])
    unsupervised_before = np.concatenate([[0], np.cumsum(~flags)])
    return [bool(unsupervised_before[start] == unsupervised_before[end]) for start, end in spans]


def _call_json(call: ToolCall) -> str:
    return f'{{"name": "{call.name}", "arguments": {_json(call.arguments)}}}'


def _json(value: Any) -> str:
    """As transformers' `tojson`: the keys' order kept, no escapes beyond JSON's."""
    return json.dumps(value, ensure_ascii=False)


def _check_tools(conversation: Conversation, style: ChatStyle) -> None:
    if style.tools:
        return
    if conversation.tools or any(m.role == "tool" or m.tool_calls for m in conversation.messages):
        raise InputError(
            f"{conversation.source}:1: the record uses tools, which this model's chat template does not have;"
            " use a Qwen2.5 model, or write the calls as text"
        )
