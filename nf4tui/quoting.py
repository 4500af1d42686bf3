"""How messages quote what a checkpoint says of itself: a name of 50 MB must not become a message of 50 MB.

Control characters are the command line's matter (sanitize.py); the length is ours.
"""

_LONGEST = 160


def quoted(value: object) -> str:
    """repr(value), its middle left out where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
