"""Nothing in the repository names a place on somebody's machine."""

import re
from pathlib import Path

MACHINE = re.compile(rb"(?<![\w.])/(?:home|Users|root|work|mnt|opt)/\w|[A-Z]:\\\\?Users")
SKIPPED = (".safetensors", ".lock")


def places(data: bytes) -> list[bytes]:
    return [match[0] for match in MACHINE.finditer(data)]


def test_no_file_names_a_machine_path(repository_files: list[Path]) -> None:
    found = {
        str(path): places(data)
        for path in repository_files
        if path.suffix not in SKIPPED and path != Path(__file__) and places(data := path.read_bytes())
    }
    assert found == {}


def test_the_rule_sees_what_breaks_it() -> None:
    assert places(b'open("/home/me/data.jsonl")') and places(b"/work/x") and places(b"C:\\Users\\me")
    assert not places(b"runs/work/x") and not places(b"https://example.org/home/x")
