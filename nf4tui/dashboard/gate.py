"""Where a dashboard can be shown: keys come in, the cursor moves, and both are a person's terminal.

Textual draws on standard error, so that must be the terminal, too. Textual itself would go on in a dumb
terminal and into a pipe.
"""

from typing import TextIO

from nf4tui.config import terminal_is_dumb


def can_show(stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None) -> bool:
    """Whether all three are terminals and TERM is not dumb. None: the stream was closed at start."""
    return all(map(_is_terminal, (stdin, stdout, stderr))) and not terminal_is_dumb()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
