"""Runs a model's Jinja chat template, which is a program from a stranger, where it can do no harm.

A child process with a limit on its memory and its time renders in Jinja's sandbox, set up as transformers
does it (trim_blocks, lstrip_blocks, tojson without escapes), and hands back plain text. `python -m
nf4tui.data.template_sandbox` is that child: a request on stdin, the texts on stdout, both JSON.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

MEMORY = 2**29  # bytes of address space
SECONDS = 5
LONGEST_OUTPUT = 2**20  # characters, of all renderings


class TemplateError(ValueError):
    """The template cannot be used; the message says why, in one line."""


def render_in_sandbox(
    template: str, records: Sequence[dict[str, Any]], *, generation: bool = False, seconds: int = SECONDS
) -> list[str]:
    """The text of each record ({"messages", "tools"}). `seconds`: of processor time. Raises TemplateError."""
    request = json.dumps(
        {"template": template, "records": list(records), "generation": generation, "seconds": seconds}
    )
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-m", "nf4tui.data.template_sandbox"],
            input=request.encode(),
            capture_output=True,
            timeout=4 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TemplateError("it took too long to run") from None
    if child.returncode != 0:
        raise TemplateError("its run was ended: it needs too much time or memory")
    answer = json.loads(child.stdout)
    if "error" in answer:
        raise TemplateError(f"it failed ({answer['error']})")
    texts: list[str] = answer["texts"]
    return texts


def main() -> None:
    """The child's work."""
    import resource  # noqa: PLC0415 (the child's alone)

    request = json.load(sys.stdin.buffer)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(_answer(request), sys.stdout)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 (the child's alone)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    try:
        template = environment.from_string(request["template"])
        texts = [
            template.render(
                messages=record["messages"],
                tools=record.get("tools"),
                add_generation_prompt=request["generation"],
            )
            for record in request["records"]
        ]
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # whatever the stranger's program raises
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    if sum(map(len, texts)) > LONGEST_OUTPUT:
        return {"error": "its output is too long"}
    return {"texts": texts}


if __name__ == "__main__":
    main()
