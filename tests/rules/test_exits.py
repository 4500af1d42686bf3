"""Only cli.py ends the process, and a worker its own; a second Ctrl-C ends either at once."""

import ast

ALLOWED = {"nf4tui/cli.py", "nf4tui/training/worker.py", "nf4tui/training/signals.py"}


def exits(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.exit", "os._exit"}:
            return True
        if isinstance(node, ast.Name) and node.id in {"SystemExit", "exit", "quit"}:
            return True
    return False


def test_only_the_command_line_exits(sources: dict[str, str]) -> None:
    assert {name for name, text in sources.items() if exits(text)} <= ALLOWED


def test_the_rule_sees_what_breaks_it() -> None:
    assert exits("import sys\nsys.exit(1)") and exits("raise SystemExit(2)")
    assert not exits("app.exit()")
