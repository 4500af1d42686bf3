"""Which of Qwen's published chat forms a model uses, told from its Jinja chat template.

The template itself is never run: the forms are few, and chat.py writes them natively, which is how the loss
mask is made. They differ in the system prompt that stands in when a conversation has none, in whether tools
are known (Qwen2.5) or not (Qwen2), and in the braces around the tool-call example (one or two: both were
published). A template with anything else in it is refused, since training on another form than generation
uses would fit the wrong model.
"""

import hashlib
import re
from dataclasses import dataclass

from nf4tui.errors import InputError


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """name: `qwen2.5` or `qwen2`. default_system, default_system_with_tools: the prompt of a conversation
    without one. tools: whether the form has tools. example: the tool-call example of the tools block."""

    name: str
    default_system: str
    default_system_with_tools: str
    tools: bool
    example: str


_EXAMPLE = '{"name": <function-name>, "arguments": <args-json-object>}'
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
ASSISTANT = "You are a helpful assistant."

QWEN25 = ChatStyle("qwen2.5", QWEN, QWEN, True, _EXAMPLE)
QWEN2 = ChatStyle("qwen2", ASSISTANT, ASSISTANT, False, _EXAMPLE)

_STRING = r"'((?:[^'\\\n]|\\.)*)'"
_DEFAULT_TURN = re.compile(r"'<\|im_start\|>system\\n((?:[^'\\\n]|\\.)*?)<\|im_end\|>\\n'")
_DEFAULT_WITH_TOOLS = re.compile(r"\{%- else %\}\s*\{\{- " + _STRING + r" \}\}")
_DOUBLE_BRACES = re.compile(r'\{(\{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>\})\}')

# SHA-256 of each published template, its default prompts taken out and its blanks made single.
_KNOWN = {
    "3040076b226904f6717f1a9d455313882bc5cfd472a3b522ca81cc83f2679781": "qwen2.5",
    "75dc0b1710790022bf0fca7d8411d7cf9be27ed39d7daf96986865a42063eb05": "qwen2",
}


def style_of(template: str | None, where: str) -> ChatStyle:
    """The style of a model's chat template; Qwen2.5's where it has none. Raises InputError."""
    if template is None:
        return QWEN25
    skeleton, prompts, doubled = _take_apart(template)
    name = _KNOWN.get(hashlib.sha256(skeleton.encode()).hexdigest())
    if name is None or not prompts:
        raise InputError(
            f"{where}: its chat template is not one that Qwen2 or Qwen2.5 was published with;"
            " use a model that has one of those"
        )
    example = "{" + _EXAMPLE + "}" if doubled else _EXAMPLE
    return ChatStyle(name, prompts[-1], prompts[0], name == "qwen2.5", example)


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
