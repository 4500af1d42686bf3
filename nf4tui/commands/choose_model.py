"""The model of a command: the one named, else the sample's, the user's default, or a choice on a terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path

from nf4tui.config import user_settings_path
from nf4tui.errors import InputError


def choose_model(given: str | None, data: Sequence[str] = ()) -> str:
    """A directory or hub id. Raises InputError where none is named and nobody can be asked."""
    from nf4tui.models.default_model import HINT, model_of_user_settings, sample_model_of

    if given is not None:
        return given
    for file in data[:1]:
        sample = sample_model_of(file)
        if sample is not None:
            return str(sample)
    default = model_of_user_settings(user_settings_path())
    if default is not None:
        return default
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _ask()
    raise InputError(f"no model: {HINT}, or set `model` in {user_settings_path()}")


def _ask() -> str:
    from nf4tui.models.default_model import HINT, cached_models
    from nf4tui.sanitize import one_line

    here = Path("sample_data/model")
    offers = [str(here)] if (here / "config.json").is_file() else []
    offers += cached_models()
    for number, offer in enumerate(offers, start=1):
        sys.stderr.write(f"  {number}  {one_line(offer)}\n")
    sys.stderr.write("Model (a number, a directory or a hub id): ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if answer.isdigit() and 1 <= int(answer) <= len(offers):
        return offers[int(answer) - 1]
    if not answer or answer.isdigit():
        raise InputError(f"no model chosen: {HINT}")
    return answer
