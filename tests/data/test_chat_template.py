"""A model's template is one of Qwen's forms, proved by its text or by its renderings, or runs itself."""

import pytest

from nf4tui.data import chat_template
from nf4tui.data.chat_form import ChatForm, NativeForm
from nf4tui.data.chat_template import form_of
from nf4tui.data.chatml import QWEN25, ChatStyle
from nf4tui.data.segments import RenderError
from nf4tui.data.template_form import TemplateForm
from nf4tui.data.template_sandbox import Rendering, render_many
from nf4tui.errors import InputError

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def form(template: str | None) -> ChatForm:
    return form_of(template, {}, CONTROLS, "models/x")


def style_of(template: str | None) -> ChatStyle:
    found = form(template)
    assert isinstance(found, NativeForm)
    return found.style


RECORD = Rendering([{"role": "user", "content": "Hi"}])

# The generic form, without a default system prompt.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def refuse_to_run(*_: object, **__: object) -> list[str]:
    raise AssertionError("a known template must not be run")


def test_published_templates_are_known_without_running_them(
    monkeypatch: pytest.MonkeyPatch, qwen25_template: str, qwen2_template: str
) -> None:
    monkeypatch.setattr(chat_template, "render_many", refuse_to_run)
    qwen25, qwen2 = style_of(qwen25_template), style_of(qwen2_template)
    assert (qwen25.name, qwen2.name) == ("qwen2.5", "qwen2")
    assert (qwen25.tools, qwen2.tools) == (True, False)
    assert qwen25.default_system == "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert qwen2.default_system == "You are a helpful assistant."
    assert qwen25 == QWEN25


def test_a_template_known_by_its_text_is_measured_as_the_same_style(
    monkeypatch: pytest.MonkeyPatch, qwen25_template: str, qwen2_template: str
) -> None:
    """The two ways of telling a style agree."""
    doubled = qwen25_template.replace('{\\"name\\"', '{{\\"name\\"').replace(
        "json-object>}", "json-object>}}"
    )
    for template in (qwen25_template, doubled, qwen2_template):
        known = style_of(template)
        with monkeypatch.context() as patch:
            patch.setattr(chat_template, "_KNOWN", {})
            assert style_of(template) == known


def test_the_same_form_written_otherwise_is_measured(qwen25_template: str) -> None:
    rewritten = qwen25_template.replace("message.role", "message['role']").replace("Alibaba Cloud", "someone")
    style = style_of("{# a comment #}" + rewritten)
    assert style.name == "qwen2.5"
    assert style.default_system == "You are Qwen, created by someone. You are a helpful assistant."


def test_a_form_without_a_default_prompt_has_no_system_turn() -> None:
    style = style_of(CHATML)
    assert (style.name, style.default_system, style.tools) == ("chatml", None, False)
    assert style_of(None) == style


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<tool_response>", "<tool_result>"),
        ("message.content + '<|im_end|>'", "message.content | trim + '<|im_end|>'"),
        ("tool_call.arguments | tojson", "tool_call.arguments"),
        ("messages[0]['content'] + '<|im_end|>", "messages[0]['content'] | trim + '<|im_end|>"),
        ("signatures within", "signatures in"),
    ],
)
def test_a_template_that_writes_anything_otherwise_is_not_taken_for_qwens(
    qwen25_template: str, old: str, new: str
) -> None:
    assert old in qwen25_template
    assert isinstance(form(qwen25_template.replace(old, new)), TemplateForm)


def test_a_template_that_trains_another_answer_than_it_asks_for_is_refused(qwen25_template: str) -> None:
    old = "'<|im_start|>assistant\\n' }}"
    assert old in qwen25_template
    with pytest.raises(InputError, match="writes answer 1 of the record otherwise than generation"):
        form(qwen25_template.replace(old, "'<|im_start|>assistant\\n<think>\\n' }}"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% for",
        "{{ raise_exception('no') }}",
        "{{ 'A' * 10 ** 10 }}",
        "{{ 'A' * (2 * 10 ** 7) }}",
    ],
)
def test_a_hostile_or_broken_template_is_refused(template: str) -> None:
    try:
        (error,) = render_many(template, [RECORD])
    except RenderError as caught:
        error = caught
    assert isinstance(error, RenderError) and "\n" not in str(error)
    with pytest.raises(InputError, match="models/x: its chat template cannot be used"):
        form(template)


def test_a_template_that_does_not_end_is_stopped() -> None:
    nested = "{% for a in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4
    with pytest.raises(RenderError, match="too much time or memory"):
        render_many(nested, [RECORD], seconds=1)


def test_the_sandbox_renders_as_transformers_does() -> None:
    template = "{% for m in messages %}\n    {% if m %}\n{{ m | tojson }}\n    {% endif %}\n{% endfor %}\n"
    assert render_many(template, [Rendering([{"a": "é<"}, {"b": 1}])]) == ['{"a": "é<"}\n{"b": 1}\n']
