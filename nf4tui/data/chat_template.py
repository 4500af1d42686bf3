"""Which chat form a model uses, told from its Jinja chat template.

A template as Qwen2 or Qwen2.5 was published with it, whatever its default prompts, is known by its hash and
is not run: chatml.py writes it natively. Any other is run in a sandbox on a few conversations; where what
differs between Qwen's forms can be read off and every rendering then equals the native one, it is native
too. What is left is rendered by the template itself (template_form.py). A model without a template, as some
base models are, gets plain ChatML.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nf4tui.data.chat_form import ChatForm, NativeForm
from nf4tui.data.chatml import CALL_EXAMPLE, PLAIN, TURN_END, TURN_START, ChatStyle, render
from nf4tui.data.messages import parse_messages
from nf4tui.data.segments import RenderError, text_of
from nf4tui.data.template_form import TemplateForm
from nf4tui.data.template_sandbox import Rendering, render_many
from nf4tui.errors import InputError

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


def form_of(
    template: str | None, variables: Mapping[str, str], control_tokens: Sequence[str], where: str
) -> ChatForm:
    """The form of a model's chat template; plain ChatML where it has none.

    variables: the special tokens by the names that templates use (`eos_token`, …). control_tokens: all that
    the tokenizer has. Raises InputError: the template fails, or the tokenizer lacks ChatML's tokens.
    """
    if template is None:
        form: ChatForm = NativeForm(PLAIN)
    else:
        try:
            style = _known_style(template) or _measured_style(template, variables)
            form = NativeForm(style) if style else TemplateForm(template, variables, control_tokens)
        except RenderError as error:
            raise InputError(f"{where}: its chat template cannot be used: {error}") from None
    if isinstance(form, NativeForm):
        for name in (TURN_START, TURN_END):
            if name not in control_tokens:
                raise InputError(
                    f"{where}: its tokenizer has no special token {name}, which its chat form"
                    f" ({form.name}) needs; take tokenizer and template from one model"
                )
    return form


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


def _measured_style(template: str, variables: Mapping[str, str]) -> ChatStyle | None:
    """The style under which native rendering gives what the template gives, if there is one.
    Raises RenderError if the template fails on a plain conversation."""
    plain, tools = _rendered(template, [_PLAIN[0], _WITH_TOOLS[0]], variables)
    if isinstance(plain, RenderError):
        raise plain
    if isinstance(tools, RenderError):
        return None
    default = _between(plain, "<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n")
    default_with_tools = _between(tools, "<|im_start|>system\n", "\n\n# Tools\n\n")
    has_tools = tools != plain
    name = "qwen2.5" if has_tools else "chatml" if default is None else "qwen2"
    example = _example("{" + CALL_EXAMPLE + "}" in tools)
    style = ChatStyle(name, default, default_with_tools or "", has_tools, example)
    records = [*_PLAIN, *(_WITH_TOOLS if has_tools else ())]
    wanted = [_native(record, style) for record in records]
    if _rendered(template, records, variables) != wanted:
        return None
    prompted = _rendered(template, [records[-1]], variables, generation=True)
    return style if prompted == [wanted[-1] + "<|im_start|>assistant\n"] else None


def _rendered(
    template: str,
    records: Sequence[dict[str, Any]],
    variables: Mapping[str, str],
    *,
    generation: bool = False,
) -> list[str | RenderError]:
    requests = [Rendering(record["messages"], record.get("tools"), generation) for record in records]
    return render_many(template, requests, variables)


def _native(record: dict[str, Any], style: ChatStyle) -> str:
    return text_of(render(parse_messages(record, "chat template"), style))


def _between(text: str, start: str, end: str) -> str | None:
    """What stands between `start`, at the beginning, and the first `end` after it."""
    if not text.startswith(start) or end not in text:
        return None
    return text[len(start) : text.index(end)]
