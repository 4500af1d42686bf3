"""Every file says its idea, and every public class and function says what it does.

A method whose name and types say it all (`path`, `__enter__`, a handler of Textual) needs none.
"""

import ast
from collections.abc import Iterator

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def missing(name: str, text: str) -> Iterator[str]:
    module = ast.parse(text)
    if module.body and not ast.get_docstring(module):
        yield name
    for node in module.body:
        if not isinstance(node, Defined) or node.name.startswith("_") or ast.get_docstring(node):
            continue
        yield f"{name}: {node.name}"


def test_public_names_and_files_have_docstrings(sources: dict[str, str]) -> None:
    assert [found for name, text in sources.items() for found in missing(name, text)] == []


def test_the_rule_sees_what_breaks_it() -> None:
    text = '"""Idea."""\ndef f(): pass\nclass C: pass\ndef _g(): pass'
    assert list(missing("a.py", text)) == ["a.py: f", "a.py: C"]
    assert list(missing("a.py", "x = 1")) == ["a.py"]
