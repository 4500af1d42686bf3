"""A file holds one idea: at most 300 lines, and no file is called utils.py."""

LIMIT = 300
EXCEPTIONS: dict[str, str] = {}  # path: why it has to be longer


def too_long(sources: dict[str, str]) -> list[str]:
    return [
        name for name, text in sources.items() if len(text.splitlines()) > LIMIT and name not in EXCEPTIONS
    ]


def without_a_subject(sources: dict[str, str]) -> list[str]:
    names = ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")
    return [name for name in sources if name.rsplit("/", maxsplit=1)[-1] in names]


def test_no_file_is_longer_than_its_limit(sources: dict[str, str]) -> None:
    assert too_long(sources) == []


def test_every_file_is_named_after_its_subject(sources: dict[str, str]) -> None:
    assert without_a_subject(sources) == []


def test_every_exception_is_still_needed(sources: dict[str, str]) -> None:
    assert [name for name in EXCEPTIONS if len(sources.get(name, "").splitlines()) <= LIMIT] == []


def test_the_rules_see_what_breaks_them() -> None:
    assert too_long({"nf4tui/a.py": "x\n" * 301, "nf4tui/b.py": "x\n" * 300}) == ["nf4tui/a.py"]
    assert without_a_subject({"nf4tui/data/utils.py": ""}) == ["nf4tui/data/utils.py"]
