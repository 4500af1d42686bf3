"""A path as a person types it."""

from pathlib import Path

from nf4tui.errors import InputError


def user_path(text: str | Path) -> Path:
    """The path with `~` and `~user` replaced by their home. Raises InputError where there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{text}: {error}") from None
