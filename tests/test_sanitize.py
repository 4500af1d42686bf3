"""Text from data never reaches a terminal raw."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nf4tui.sanitize import one_line, visible

INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(alphabet=st.characters(codec=None)))
def test_no_control_format_or_surrogate_character_survives(text: str) -> None:
    shown = visible(text)
    for character in shown:
        dangerous = unicodedata.category(character) in INVISIBLE and character not in "\n\t"
        # Format characters that are visible or shape scripts (Arabic number signs) carry no danger.
        assert not dangerous or unicodedata.category(character) == "Cf"
    shown.encode("utf-8")
    assert not set(one_line(text)) & set("\n\t\r")


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
