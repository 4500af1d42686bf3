"""Every failure a user can meet, with its exit code. Only cli.py turns one into an exit.

The message is one line: what is wrong, where (`file:line:column`, a tensor, a flag), and what to do.
It may quote user data: cli.py passes it through sanitize.visible() before it reaches a terminal.
"""

from typing import ClassVar


class Nf4tuiError(Exception):
    """Base of all expected failures. `exit_code` is the process's exit status."""

    exit_code: ClassVar[int] = 1


class InputError(Nf4tuiError):
    """Bad input or usage: a file, a field, a tensor, a flag. Nothing was written."""

    exit_code: ClassVar[int] = 2


class CannotRunError(Nf4tuiError):
    """This machine cannot do what was asked: no GPU, not enough memory by plan."""

    exit_code: ClassVar[int] = 3


class TrainingFailedError(Nf4tuiError):
    """Training broke: non-finite numbers in a row, a device error."""

    exit_code: ClassVar[int] = 4
