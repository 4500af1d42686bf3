"""The command line: flags to calls, and the one owner of standard error and exit codes.

Every command's work is in commands/, imported when it runs, so that `nf4tui --help` stays fast.
"""

import errno
import io
import json
import os
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from nf4tui import __version__, cli_commands
from nf4tui.errors import CannotRunError, InputError, Nf4tuiError, TrainingFailedError
from nf4tui.sanitize import one_line

BUG, INTERRUPTED = 1, 130

app = App(
    name="nf4tui",
    help="NF4 QLoRA fine-tuning of Qwen2 and Qwen2.5, checked against a NumPy reference while it trains.",
    version=__version__,
    help_format="plaintext",
)
for command in cli_commands.COMMANDS:
    app.command(command)


def main() -> NoReturn:
    """Runs the command of sys.argv and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that is not UTF-8 gets escapes for what it cannot show, and no failure.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command; returns the exit code. Whatever ends it early is one line on stderr, and with --json
    an event on stdout too, never a traceback."""
    try:
        command, bound, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
        code = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing to say, and nobody to say it to.
        _abandon_stdout()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        training = arguments[:1] == ["train"]
        code, message = _explained(error, training)
        # train shows its own failures as events.
        shown = isinstance(error, KeyboardInterrupt) or (training and isinstance(error, Nf4tuiError))
        _say(message, as_json="--json" in arguments and not shown)
    return code if isinstance(code, int) else 0


def _explained(error: BaseException, training: bool) -> tuple[int, str]:
    """(exit code, what to say) of an exception."""
    match error:
        case CycloptsError():
            return InputError.exit_code, str(error)
        case Nf4tuiError():
            return error.exit_code, str(error)
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted"
        case MemoryError():
            advice = "free some, or take a smaller model, batch or --max-seq-len"
            return CannotRunError.exit_code, f"out of memory; {advice}"
        case OSError(errno=errno.ENOSPC):
            _abandon_stdout()
            return CannotRunError.exit_code, f"{error.filename or 'standard output'}: {error.strerror}"
        case _:
            return TrainingFailedError.exit_code if training else BUG, _report(error)


def _say(message: str, *, as_json: bool) -> None:
    line = one_line(" ".join(message.split("\n")))
    try:
        if as_json:
            print(json.dumps({"event": "error", "message": line}), flush=True)
    except OSError:
        _abandon_stdout()
    print(f"nf4tui: error: {line}", file=sys.stderr)


def _abandon_stdout() -> None:
    """Lets what Python still holds for standard output go nowhere, so that its exit says nothing."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _report(error: BaseException) -> str:
    """Writes the traceback to a file; returns the line that says where."""
    import tempfile  # noqa: PLC0415 - only a bug needs them
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(error))
    name = type(error).__name__
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="nf4tui-crash-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(f"nf4tui {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return f"a bug in nf4tui ({name}: {error}); its report could not be written"
    return f"a bug in nf4tui ({name}: {error}); please report it with {file.name}"
