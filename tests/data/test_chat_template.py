"""A model's template is either one of Qwen's forms, proved by its text or by its renderings, or refused."""

import pytest

from nf4tui.data import chat_template
from nf4tui.data.chat_template import style_of
from nf4tui.data.template_sandbox import TemplateError, render_in_sandbox
from nf4tui.errors import InputError

RECORD = {"messages": [{"role": "user", "content": "Hi"}]}

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
    monkeypatch.setattr(chat_template, "render_in_sandbox", refuse_to_run)
    qwen25, qwen2 = style_of(qwen25_template, "x"), style_of(qwen2_template, "x")
    assert (qwen25.name, qwen2.name) == ("qwen2.5", "qwen2")
    assert (qwen25.tools, qwen2.tools) == (True, False)
    assert qwen25.default_system == "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert qwen2.default_system == "You are a helpful assistant."
    assert style_of(None, "x") == qwen25


def test_a_template_known_by_its_text_is_measured_as_the_same_style(
    monkeypatch: pytest.MonkeyPatch, qwen25_template: str, qwen2_template: str
) -> None:
    """The two ways of telling a style agree."""
    doubled = qwen25_template.replace('{\\"name\\"', '{{\\"name\\"').replace(
        "json-object>}", "json-object>}}"
    )
    for template in (qwen25_template, doubled, qwen2_template):
        known = style_of(template, "x")
        with monkeypatch.context() as patch:
            patch.setattr(chat_template, "_KNOWN", {})
            assert style_of(template, "x") == known


def test_the_same_form_written_otherwise_is_measured(qwen25_template: str) -> None:
    rewritten = qwen25_template.replace("message.role", "message['role']").replace("Alibaba Cloud", "someone")
    style = style_of("{# a comment #}" + rewritten, "x")
    assert style.name == "qwen2.5"
    assert style.default_system == "You are Qwen, created by someone. You are a helpful assistant."


def test_a_form_without_a_default_prompt_has_no_system_turn() -> None:
    style = style_of(CHATML, "x")
    assert (style.name, style.default_system, style.tools) == ("qwen2", None, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<tool_response>", "<tool_result>"),
        ("message.content + '<|im_end|>'", "message.content | trim + '<|im_end|>'"),
        ("tool_call.arguments | tojson", "tool_call.arguments"),
        ("messages[0]['content'] + '<|im_end|>", "messages[0]['content'] | trim + '<|im_end|>"),
        ("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"),
        ("signatures within", "signatures in"),
    ],
)
def test_a_template_that_writes_anything_otherwise_is_refused(
    qwen25_template: str, old: str, new: str
) -> None:
    assert old in qwen25_template
    with pytest.raises(InputError, match="models/x: its chat template cannot be used: it") as caught:
        style_of(qwen25_template.replace(old, new), "models/x")
    assert "\n" not in str(caught.value)


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
        "{{ 'A' * (2 * 10 ** 6) }}",
    ],
)
def test_a_hostile_or_broken_template_is_refused(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render_in_sandbox(template, [RECORD])
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="models/x: its chat template cannot be used"):
        style_of(template, "models/x")


def test_a_template_that_does_not_end_is_stopped() -> None:
    nested = "{% for a in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4
    with pytest.raises(TemplateError, match="too much time or memory"):
        render_in_sandbox(nested, [RECORD], seconds=1)


def test_the_sandbox_renders_as_transformers_does() -> None:
    template = "{% for m in messages %}\n    {% if m %}\n{{ m | tojson }}\n    {% endif %}\n{% endfor %}\n"
    assert render_in_sandbox(template, [{"messages": [{"a": "é<"}, {"b": 1}]}]) == ['{"a": "é<"}\n{"b": 1}\n']
