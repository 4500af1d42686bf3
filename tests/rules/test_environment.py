"""Only config.py reads the environment."""

import ast

ALLOWED = {"nf4tui/config.py"}
READS = {"environ", "environb", "getenv", "getenvb", "putenv"}


def reads(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in READS:
            return True
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        if imported and READS & {name.name for name in node.names}:
            return True
    return False


def test_only_config_reads_the_environment(sources: dict[str, str]) -> None:
    assert {name for name, text in sources.items() if reads(text)} == ALLOWED


def test_the_rule_sees_what_breaks_it() -> None:
    assert reads("import os\nx = os.environ['A']")
    assert reads("from os import getenv")
    assert not reads("import os\nx = os.getpid()")
