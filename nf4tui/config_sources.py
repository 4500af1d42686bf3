"""Where a training run's settings come from: flags over environment over a TOML file over defaults.

A source is a mapping of field names of TrainConfig to values. Text (environment, flags) is converted; TOML
has types of its own, which must be right. What a source may hold is read off TrainConfig itself.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from nf4tui.config import TrainConfig, environment_settings
from nf4tui.errors import InputError

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of text",
}
# None means automatic, and may be written so where a source can hold text.
AUTO = "auto"


def merged(
    flags: Mapping[str, Any], toml: Path | None, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The settings of all sources by field name, defaults left out.

    flags: values as the command line gives them (text or typed), without what was not given.
    Raises InputError that names the source, the setting and what it must be.
    """
    settings: dict[str, Any] = {}
    if toml is not None:
        settings |= read_toml(toml)
    variables = environment_settings() if environment is None else environment
    for variable, text in variables.items():
        where = f"environment variable NF4TUI_{variable.upper()}"
        name = _known(variable, where)
        settings[name] = converted(name, text, where)
    for name, value in flags.items():
        settings[name] = converted(name, value, flag(name)) if isinstance(value, str) else value
    return settings


def flag(name: str) -> str:
    """The long flag of a setting."""
    return f"--{name.replace('_', '-')}"


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file: keys are flag names, with - or _."""
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML: {error}") from error
    settings = {}
    for key, value in table.items():
        name = _known(key.replace("-", "_"), str(path))
        if name in settings:
            raise InputError(f"{path}: {key} is given twice, with - and with _")
        settings[name] = _typed(name, value, f"{path}: {key}")
    return settings


def _known(name: str, where: str) -> str:
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0].replace('_', '-')!r}?" if close else ""
        raise InputError(f"{where}: there is no setting {name.replace('_', '-')!r}{hint}")
    return name


def _kind(name: str) -> tuple[type, bool]:
    """The type of a setting, and whether it may be automatic (None)."""
    hint = get_type_hints(TrainConfig)[name]
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = next(option for option in options if option is not type(None))
    return (tuple if getattr(kind, "__origin__", None) is tuple else kind), type(None) in options


def _item_kind(name: str) -> type:
    """The type of the items of a setting that is a list."""
    hint = get_type_hints(TrainConfig)[name]
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    (items,) = (get_args(option) for option in options if get_origin(option) is tuple)
    kind: type = items[0]
    return kind


def converted(name: str, text: str, where: str) -> Any:
    """`text` as the setting's type. Raises InputError that begins with `where`."""
    kind, automatic = _kind(name)
    if automatic and text == AUTO and kind is not str:
        return None
    try:
        if kind is bool:
            return _boolean(text)
        if kind is tuple:
            return tuple(_item_kind(name)(part.strip()) for part in text.split(",") if part.strip())
        return kind(text)
    except ValueError:
        raise InputError(f"{where} {text!r}: must be {_described(name)}") from None


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _typed(name: str, value: Any, where: str) -> Any:
    kind, automatic = _kind(name)
    if automatic and value == AUTO and kind is not str:
        return None
    if kind is tuple:
        if isinstance(value, str):
            return (value,) if name == "data" else converted(name, value, where)
        wanted = (int, float) if _item_kind(name) is float else str
        if isinstance(value, list) and all(
            isinstance(item, wanted) and not isinstance(item, bool) for item in value
        ):
            return tuple(_item_kind(name)(item) for item in value)
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InputError(f"{where} = {value!r}: must be {_described(name)}")


def _described(name: str) -> str:
    kind, automatic = _kind(name)
    what = "a list of numbers" if kind is tuple and _item_kind(name) is float else _KINDS[kind]
    return what + (f", or {AUTO!r}" if automatic and kind is not str else "")
