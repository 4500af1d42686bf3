"""Any chat template that is not one of Qwen's own: rendered by Jinja in a sandbox, with the mask told apart.

What an answer adds to a conversation is what stands between two renderings of the template itself:

    before = render(messages up to the answer, add_generation_prompt)     what generation is given
    after  = render(messages up to and with the answer)                   what it should have become

`before` must begin `after`, and `after` the whole conversation's text: else the template writes an answer
otherwise in training than in use, and the record is refused. Supervised are the characters between the two,
up to the first of the control tokens that close them, which is where generation stops.

A control token inside content would look like one of the template's own in the finished text. So a mark, a
Unicode noncharacter, is put into it before rendering and taken out afterwards: what is still whole is the
template's.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nf4tui.data.conversation import Conversation, Message, ToolCall
from nf4tui.data.segments import RenderError, Segment
from nf4tui.data.template_sandbox import Rendering, render_many

_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_AT_ONCE = 64  # conversations a child process renders

_TOOL = {"type": "function", "function": {"name": "look_up_7", "description": "", "parameters": {}}}
_USER, _ANSWER = Message("user", "question 3"), Message("assistant", "answer 5")
_PROBE = Conversation((_USER, _ANSWER, _USER, _ANSWER))
_CALLING = Message("assistant", "", (ToolCall("look_up_7", {"of": "value 9"}),))
_TOOL_PROBE = Conversation((_USER, _CALLING, Message("tool", "result 11"), _ANSWER), (_TOOL,))


class TemplateForm:
    """A ChatForm over a Jinja template.

    variables: what the template may use beside the conversation (`bos_token`, `eos_token`, …).
    control_tokens: the tokenizer's. Raises RenderError where the template cannot be used at all: it fails,
    needs too much time or memory, or writes no control token after an answer.
    """

    def __init__(self, template: str, variables: Mapping[str, str], control_tokens: Sequence[str]) -> None:
        self._template = template
        self._variables = dict(variables)
        names = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names)))
        digest = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
        self.name = f"the model's own template {digest[:12]}"
        self.identity = f"template {digest} {sorted(self._variables.items())}"
        self._tools = False
        self.end = self._probed_end()
        self._tools = self._shows_tools()

    def render(
        self, conversations: Sequence[Conversation], supervise: str
    ) -> list[list[Segment] | RenderError]:
        """See ChatForm."""
        rendered: list[list[Segment] | RenderError] = []
        for first in range(0, len(conversations), _AT_ONCE):
            rendered += self._render_some(conversations[first : first + _AT_ONCE], supervise)
        return rendered

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """See ChatForm."""
        self._check_tools(conversation)
        mark = _unused_mark(conversation)
        (text,) = self._texts([self._request(conversation, len(conversation.messages), mark, prompt=True)])
        if isinstance(text, RenderError):
            raise text
        return self._segments(text, mark, [])

    def _render_some(
        self, conversations: Sequence[Conversation], supervise: str
    ) -> list[list[Segment] | RenderError]:
        plans = [self._plan(conversation, supervise) for conversation in conversations]
        sound = [plan for plan in plans if isinstance(plan, _Plan)]
        texts = iter(self._texts([request for plan in sound for request in plan.requests]))
        return [
            self._finish(plan, [next(texts) for _ in plan.requests]) if isinstance(plan, _Plan) else plan
            for plan in plans
        ]

    def _plan(self, conversation: Conversation, supervise: str) -> "_Plan | RenderError":
        try:
            self._check_tools(conversation)
            mark = _unused_mark(conversation)
        except RenderError as error:
            return error
        requests = [self._request(conversation, len(conversation.messages), mark, prompt=False)]
        for index in conversation.supervised(supervise):
            requests.append(self._request(conversation, index, mark, prompt=True))
            requests.append(self._request(conversation, index + 1, mark, prompt=False))
        return _Plan(conversation, mark, requests)

    def _finish(self, plan: "_Plan", texts: list[str | RenderError]) -> list[Segment] | RenderError:
        """The segments, from the texts of the plan's requests."""
        good: list[str] = []
        for text in texts:
            if isinstance(text, RenderError):
                return text
            good.append(text)
        whole, *parts = good
        spans = []
        for number, (before, after) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            if not (after.startswith(before) and whole.startswith(after)):
                return RenderError(
                    f"the chat template writes answer {number + 1} of the record otherwise than generation"
                    " would see it; use --supervise last, or a model with another template"
                )
            end = self._answer_end(after, len(before))
            if end == len(before):
                return RenderError("the chat template writes no end token after an answer")
            spans.append((len(before), end))
        if lost := self._lost(plan, whole):
            return RenderError(f"the chat template leaves out a {lost} message of the record")
        return self._segments(whole, plan.mark, spans)

    def _lost(self, plan: "_Plan", whole: str) -> str | None:
        """The role of a message whose text does not come out."""
        protect = self._protector(plan.mark)
        for message in plan.conversation.messages:
            if message.role in {"system", "user"} and protect(message.content).strip() not in whole:
                return message.role
        return None

    def _request(self, conversation: Conversation, count: int, mark: str, *, prompt: bool) -> Rendering:
        """A rendering of the first `count` messages."""
        protect = self._protector(mark)
        return Rendering(
            [_as_json(message, protect) for message in conversation.messages[:count]],
            [_protected(tool, protect) for tool in conversation.tools] or None,
            prompt,
        )

    def _protector(self, mark: str) -> Callable[[str], str]:
        def protect(text: str) -> str:
            return self._control.sub(lambda match: match[0][0] + mark + match[0][1:], text)

        return protect

    def _texts(self, requests: list[Rendering]) -> list[str | RenderError]:
        return render_many(self._template, requests, self._variables)

    def _segments(self, text: str, mark: str, spans: Sequence[tuple[int, int]]) -> list[Segment]:
        """`text` cut at control tokens and at the borders of the supervised spans [start, end)."""
        controls = {match.start(): match.end() for match in self._control.finditer(text)}
        borders = {0, len(text), *controls, *controls.values(), *(at for span in spans for at in span)}
        # A border inside a control token would cut it; spans come from renderings, which hold whole ones.
        cuts = sorted(borders)
        segments = []
        for start, end in pairwise(cuts):
            supervised = any(first <= start and end <= last for first, last in spans)
            segments.append(Segment(text[start:end].replace(mark, ""), start in controls, supervised))
        return segments

    def _answer_end(self, text: str, start: int) -> int:
        """Where the supervised part of text[start:] ends: with the first of the control tokens, blanks
        between them, that it closes with. `start` if it closes with none."""
        end = start
        plain_from = start
        closing = False
        for match in self._control.finditer(text, start):
            if text[plain_from : match.start()].strip() or not closing:
                end, closing = match.end(), True
            plain_from = match.end()
        return start if text[plain_from:].strip() else end

    def _probed_end(self) -> str:
        """The control token that ends an answer."""
        rendered = self._render_some([_PROBE], "last")[0]
        if isinstance(rendered, RenderError):
            raise rendered
        supervised = [segment for segment in rendered if segment.supervised]
        return supervised[-1].text

    def _shows_tools(self) -> bool:
        """Whether tools, calls and their results all come out in the text."""
        (text,) = self._texts([self._request(_TOOL_PROBE, len(_TOOL_PROBE.messages), "", prompt=False)])
        if isinstance(text, RenderError):
            return False
        return text.count("look_up_7") >= 2 and "value 9" in text and "result 11" in text

    def _check_tools(self, conversation: Conversation) -> None:
        if self._tools:
            return
        if conversation.tools or any(m.role == "tool" or m.tool_calls for m in conversation.messages):
            raise RenderError(
                "the record uses tools, which this model's chat template does not show;"
                " use a Qwen2.5 model, or write the calls as text"
            )


@dataclass(frozen=True, slots=True)
class _Plan:
    """A conversation's renderings: the whole, then before and after each answer to learn."""

    conversation: Conversation
    mark: str
    requests: list[Rendering]


def _as_json(message: Message, protect: Callable[[str], str]) -> dict[str, Any]:
    """A message in the form that templates expect."""
    item: dict[str, Any] = {"role": message.role, "content": protect(message.content)}
    if message.tool_calls:
        item["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": _protected(call.arguments, protect)},
            }
            for call in message.tool_calls
        ]
    return item


def _protected(value: Any, protect: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, dict):
        return {protect(key): _protected(item, protect) for key, item in value.items()}
    return [_protected(item, protect) for item in value] if isinstance(value, list) else value


def _unused_mark(conversation: Conversation) -> str:
    """A noncharacter that the conversation does not hold."""
    text = repr([(message.content, message.tool_calls) for message in conversation.messages])
    text += repr(conversation.tools)
    for mark in _MARKS:
        if repr(mark)[1:-1] not in text:
            return mark
    raise RenderError("the record holds every Unicode noncharacter from U+FDD0 to U+FDEF; remove one")
