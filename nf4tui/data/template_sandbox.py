"""Runs a model's Jinja chat template, which is a program from a stranger, where it can do no harm.

A child process with limits (isolated.py) renders in Jinja's sandbox, set up as transformers does it
(trim_blocks, lstrip_blocks, tojson without escapes, raise_exception, loop controls), and hands back plain
text. `strftime_now` is not there: what is trained must not depend on the day.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nf4tui.data.segments import RenderError
from nf4tui.isolated import SECONDS, IsolatedError, run_isolated, serve

LONGEST_TEXT = 2**24  # characters of one rendering
LONGEST_OUTPUT = 2**27  # of all


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template is given: messages and tools in the form of the `messages` format."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    add_generation_prompt: bool = False


def render_many(
    template: str,
    renderings: Sequence[Rendering],
    variables: Mapping[str, str] | None = None,
    *,
    seconds: int = SECONDS,
) -> list[str | RenderError]:
    """The text of each rendering, or why the template gave none.

    variables: further names that the template may use. seconds: of processor time, for all together.
    Raises RenderError if the child needs too much time or memory.
    """
    if not renderings:
        return []
    request = {
        "template": template,
        "renderings": [asdict(rendering) for rendering in renderings],
        "variables": dict(variables or {}),
    }
    try:
        answers = run_isolated("nf4tui.data.template_sandbox", request, seconds=seconds)
    except IsolatedError as error:
        raise RenderError(str(error)) from None
    return [
        answer["text"] if "text" in answer else RenderError(f"it failed ({answer['error']})")
        for answer in answers
    ]


def _answers(request: dict[str, Any]) -> list[dict[str, str]]:
    import jinja2.exceptions  # noqa: PLC0415 (the child's alone)
    import jinja2.ext  # noqa: PLC0415
    import jinja2.sandbox  # noqa: PLC0415

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, around what templates mark as the model's own, as if it were not there."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    names = {**request["variables"], "raise_exception": raise_exception}
    answers = []
    left = LONGEST_OUTPUT
    for rendering in request["renderings"]:
        try:
            text = environment.from_string(request["template"]).render(**names, **rendering)
        except MemoryError:
            answers.append({"error": "out of memory"})
        except Exception as error:  # whatever the stranger's program raises
            answers.append({"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]})
        else:
            left -= len(text)
            too_long = len(text) > LONGEST_TEXT or left < 0
            answers.append({"error": "its output is too long"} if too_long else {"text": text})
    return answers


if __name__ == "__main__":
    serve(_answers)
