"""The one boundary between text from data and a terminal.

Data, tensor names, paths and exception text may hold control sequences: ESC and C1 start them, OSC 52
writes the clipboard, bidi controls reorder what is read, zero-width characters hide. Each such character
becomes a visible escape of itself. Markup is a separate matter: never build it from data.
"""

import re

# C0 but newline and tab; DEL and C1; soft hyphen; Arabic letter mark; zero-width and bidi marks; line and
# paragraph separators; bidi embeddings and overrides; word joiner to bidi isolates and deprecated formats;
# the byte-order mark; interlinear annotation; lone surrogates (they cannot be encoded); tags.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_BLOCK = re.compile(f"[{_HIDDEN}]")
_LINE = re.compile(f"[{_HIDDEN}\t\n]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def visible(text: str) -> str:
    """`text` with every control, bidi, zero-width and unencodable character but newline and tab replaced
    by a visible escape such as `\\x1b` or `\\u202e`."""
    return _BLOCK.sub(_escape, text)


def one_line(text: str) -> str:
    """As `visible`, with newlines and tabs escaped too: for error messages and one-line reports."""
    return _LINE.sub(_escape, text)
