"""config.toml: a run's settings as they were when it began, and their comparison on resume.

Automatic values are left out, as TOML has no null. A resumed run takes its settings from here; a flag given
again may only repeat them, apart from those that say where and how often something is kept.
"""

import dataclasses
import json
import os
import tomllib
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from nf4tui.config import TrainConfig
from nf4tui.errors import InputError
from nf4tui.user_path import user_path

MAY_DIFFER = frozenset({"out", "device", "keep"})


def to_toml(config: TrainConfig) -> str:
    """The settings as TOML. Raises InputError for text that is not Unicode (a path in another encoding)."""
    lines = ["# Settings of this run, written by nf4tui train; --resume reads them."]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None:
            continue
        lines.append(f"{field.name} = {_toml_value(field.name, value)}")
    return "\n".join(lines) + "\n"


def read_settings(path: Path) -> TrainConfig:
    """The settings in a config.toml. Raises InputError that names the file and what is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); start another run") from None
    return parse_settings(text, str(path))


def parse_settings(text: str, where: str) -> TrainConfig:
    """The settings that to_toml wrote. Raises InputError that begins with `where`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: is not valid TOML ({error}); start another run") from None
    types = get_type_hints(TrainConfig)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types:
            raise InputError(f"{where}: unknown setting {name!r}; it was written by another version")
        arguments[name] = tuple(value) if isinstance(value, list) else value
        if not _is_of(arguments[name], types[name]):
            raise InputError(f"{where}: {name} must be of type {types[name]}; got {value!r}")
    try:
        return TrainConfig(**arguments)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from None


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The same settings with files and folders named from the root, so that a run can be resumed from
    anywhere. A model that is not a folder here is a hub id and stays as it is."""
    changes: dict[str, Any] = {"data": tuple(_absolute(path) for path in config.data)}
    if os.path.lexists(user_path(config.model)):
        changes["model"] = _absolute(config.model)
    for name in ("adapter", "eval_data"):
        if getattr(config, name) is not None:
            changes[name] = _absolute(getattr(config, name))
    return dataclasses.replace(config, **changes)


def resumed(stored: TrainConfig, given: TrainConfig, explicit: frozenset[str]) -> TrainConfig:
    """The settings of a resumed run: the stored ones, and of those given explicitly the ones that may differ.

    Raises InputError that names every flag given with another value than the run has.
    """
    given = with_absolute_paths(given)
    differing = [
        f"--{name.replace('_', '-')} {_shown(getattr(given, name))} (the run has"
        f" {_shown(getattr(stored, name))})"
        for name in sorted(explicit - MAY_DIFFER)
        if getattr(given, name) != getattr(stored, name)
    ]
    if differing:
        raise InputError(
            f"{given.out}: --resume goes on with the run's own settings, but these differ:"
            f" {', '.join(differing)}; leave them out, or start another run with another --out"
        )
    changes = {name: getattr(given, name) for name in MAY_DIFFER & (explicit | {"out"})}
    return dataclasses.replace(stored, **changes)


def _absolute(path: str) -> str:
    return os.path.realpath(user_path(path))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "automatic" if value is None else str(value)


def _toml_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise InputError(f"{name} {value!r}: is not valid UTF-8; rename the file or folder")
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_toml_value(name, item) for item in value)}]"
    return repr(value)


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_is_of(value, option) for option in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, get_args(kind)[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
