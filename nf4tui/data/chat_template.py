"""Which chat form a model uses, told from its Jinja chat template.

The forms are few, and chatml.py writes them natively, which is how the loss mask is made. A template as
Qwen2 or Qwen2.5 was published with it, whatever its default prompts, is known by its hash and is not run.
Any other is run in a sandbox on a few conversations: what differs between the forms is read off, and then
every rendering must equal the native one, else the template is refused. Training on another form than
generation uses would fit the wrong model.
"""

import hashlib
import re
from typing import Any

from nf4tui.data.chatml import CALL_EXAMPLE, ChatStyle, render, text_of
from nf4tui.data.messages import parse_messages
from nf4tui.data.template_sandbox import TemplateError, render_in_sandbox
from nf4tui.errors import InputError

__all__ = ["ChatStyle", "style_of"]

QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
QWEN25 = ChatStyle("qwen2.5", QWEN, QWEN, True, CALL_EXAMPLE)

_STRING = r"'((?:[^'\\\n]|\\.)*)'"
_DEFAULT_TURN = re.compile(r"'<\|im_start\|>system\\n((?:[^'\\\n]|\\.)*?)<\|im_end\|>\\n'")
_DEFAULT_WITH_TOOLS = re.compile(r"\{%- else %\}\s*\{\{- " + _STRING + r" \}\}")
_DOUBLE_BRACES = re.compile(r'\{(\{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>\})\}')

# SHA-256 of each published template, its default prompts taken out and its blanks made single.
_KNOWN = {
    "3040076b226904f6717f1a9d455313882bc5cfd472a3b522ca81cc83f2679781": "qwen2.5",
    "75dc0b1710790022bf0fca7d8411d7cf9be27ed39d7daf96986865a42063eb05": "qwen2",
}

_USER = {"role": "user", "content": " What\n\nis it?  "}
_ANSWER = {"role": "assistant", "content": '\n It\'s <b>"é"</b>.\n'}
_CALL = {"function": {"name": "look_up", "arguments": {"b": ["é", 1, 2.5, None, True], "a": {"<": "'"}}}}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_CALLING_TWICE = {"role": "assistant", "content": " So: ", "tool_calls": [_CALL, _CALL]}
_TOOL = {"type": "function", "function": {"name": "look_up", "description": 'Looks <é> & "it" up'}}
_SYSTEM = {"role": "system", "content": " Be brief.\n"}
_PLAIN = (
    {"messages": [_USER, _ANSWER]},
    {"messages": [_SYSTEM, _USER, _ANSWER, _USER, _ANSWER]},
    {"messages": [{"role": "system", "content": ""}, _USER, _ANSWER, _USER]},
    {"messages": [_ANSWER, _USER, _USER, _ANSWER]},
)
_WITH_TOOLS = (
    {"messages": [_USER, _ANSWER], "tools": [_TOOL]},
    {
        "messages": [_SYSTEM, _USER, _CALLING, {"role": "tool", "content": " 4\n"}, _ANSWER],
        "tools": [_TOOL, _TOOL],
    },
    {
        "messages": [
            _USER,
            _CALLING_TWICE,
            {"role": "tool", "content": "<4>"},
            {"role": "tool", "content": ""},
            _CALLING,
            {"role": "tool", "content": "x"},
        ],
    },
)


def style_of(template: str | None, where: str) -> ChatStyle:
    """The style of a model's chat template; Qwen2.5's where it has none. Raises InputError."""
    if template is None:
        return QWEN25
    style = _known_style(template)
    if style is None:
        try:
            style = _measured_style(template)
        except TemplateError as error:
            raise InputError(f"{where}: its chat template cannot be used: {error}") from None
    return style


def _known_style(template: str) -> ChatStyle | None:
    skeleton, prompts, doubled = _take_apart(template)
    name = _KNOWN.get(hashlib.sha256(skeleton.encode()).hexdigest())
    if name is None or not prompts:
        return None
    tools = name == "qwen2.5"
    return ChatStyle(name, prompts[-1], prompts[0] if tools else "", tools, _example(doubled))


def _example(doubled: bool) -> str:
    return "{" + CALL_EXAMPLE + "}" if doubled else CALL_EXAMPLE


def _take_apart(template: str) -> tuple[str, list[str], bool]:
    """The template without its default prompts and without doubled braces; the prompts, in order; whether
    the tool-call example had doubled braces."""
    prompts: list[str] = []

    def take(match: re.Match[str]) -> str:
        prompts.append(_unescape(match.group(1)))
        return match.group(0).replace(match.group(1), "", 1)

    skeleton, doubled = _DOUBLE_BRACES.subn(r"\1", template)
    skeleton = _DEFAULT_WITH_TOOLS.sub(take, skeleton, count=1)
    skeleton = _DEFAULT_TURN.sub(take, skeleton, count=1)
    return " ".join(skeleton.split()), prompts, doubled > 0


def _unescape(literal: str) -> str:
    """The text of a Jinja string literal."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match.group(1), match.group(1)), literal)


def _measured_style(template: str) -> ChatStyle:
    """The style under which native rendering gives what the template gives. Raises TemplateError."""
    plain, tools = render_in_sandbox(template, [_PLAIN[0], _WITH_TOOLS[0]])
    default = _between(plain, "<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n")
    default_with_tools = _between(tools, "<|im_start|>system\n", "\n\n# Tools\n\n")
    has_tools = tools != plain
    style = ChatStyle(
        "qwen2.5" if has_tools else "qwen2",
        default,
        default_with_tools or "",
        has_tools,
        _example("{" + CALL_EXAMPLE + "}" in tools),
    )
    records = [*_PLAIN, *(_WITH_TOOLS if has_tools else ())]
    for record, rendered in zip(records, render_in_sandbox(template, records), strict=True):
        if rendered != _native(record, style):
            raise TemplateError(
                "it writes conversations otherwise than Qwen2 and Qwen2.5 do;"
                " use a model with one of their templates"
            )
    prompted = render_in_sandbox(template, [records[-1]], generation=True)[0]
    if prompted != _native(records[-1], style) + "<|im_start|>assistant\n":
        raise TemplateError(
            "it opens an answer otherwise than Qwen2 and Qwen2.5 do; use a model with one of their templates"
        )
    return style


def _native(record: dict[str, Any], style: ChatStyle) -> str:
    return text_of(render(parse_messages(record, "chat template"), style))


def _between(text: str, start: str, end: str) -> str | None:
    """What stands between `start`, at the beginning, and the first `end` after it."""
    if not text.startswith(start) or end not in text:
        return None
    return text[len(start) : text.index(end)]
