"""Text from data never reaches a terminal raw."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.sanitize import one_line, visible

ALLOWED = "\n\t"
BIDI = [0x061C, *range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
ZERO_WIDTH = [0x00AD, 0x180E, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF]
TAGS = range(0xE0000, 0xE0080)


def must_be_escaped() -> set[int]:
    """C0 but newline and tab, DEL, C1, surrogates, line and paragraph separators, bidi, zero-width, tags."""
    controls = {
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in {"Cc", "Cs", "Zl", "Zp"} and chr(code) not in ALLOWED
    }
    return controls | set(BIDI) | set(ZERO_WIDTH) | set(TAGS)


@pytest.mark.parametrize("clean", [visible, one_line])
def test_every_dangerous_code_point_becomes_an_escape_that_names_it(clean: object) -> None:
    for code in must_be_escaped():
        shown = clean(f"a{chr(code)}b")  # type: ignore[operator]
        assert shown.isascii() and shown.isprintable(), hex(code)
        match = re.fullmatch(r"a\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[rnt])b", shown)
        assert match, (hex(code), shown)
        assert match[1] == "r" or int(match[1][1:], 16) == code


def test_nothing_visible_is_changed() -> None:
    """Letters, marks, numbers, punctuation, symbols and spaces of every script, and all of printable ASCII."""
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "LMNPS" or chr(code) == " ":
            assert visible(chr(code)) == one_line(chr(code)) == chr(code), hex(code)


@given(st.text(alphabet=st.characters(codec=None)))
def test_any_text_can_be_written_to_a_terminal(text: str) -> None:
    for shown in (visible(text), one_line(text)):
        shown.encode("utf-8")
        assert not {ord(character) for character in shown} & must_be_escaped_once
    assert not set(one_line(text)) & set("\n\t\r")


must_be_escaped_once = must_be_escaped()


@given(st.text(alphabet=st.characters(codec=None)))
def test_what_is_safe_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert one_line(one_line(text)) == one_line(text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\x7f", "\\x7f"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("a\r\nb\tc", "a\\r\nb\tc"),
        ("naïve 東京 🙂 [bold]", "naïve 東京 🙂 [bold]"),
    ],
)
def test_each_dangerous_class_becomes_a_visible_escape(raw: str, shown: str) -> None:
    assert visible(raw) == shown


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\tc\rd") == "a\\nb\\tc\\rd"
