"""Which modules an adapter_config.json means, by PEFT's rules, and with which rank and alpha.

    targets    a list: a module's full name, or the end of it after a dot; text: a regular expression that
               matches full names whole; `all-linear`. exclude_modules is read alike, and wins.
    layers     layers_to_transform keeps a list of layers, of a list of targets only, and without effect on
               full names; layers_pattern names the list that they are counted in.
    ranks      of rank_pattern's keys, regular expressions for the end of a name, the first that matches wins;
               alpha_pattern likewise (PEFT 0.21: check_target_module_exists, get_pattern_key).

Regular expressions come from a stranger, and one can run for ever: where there is any, a child process with
limits (isolated.py) matches them.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nf4tui.isolated import IsolatedError, run_isolated, serve

_PLAIN = re.compile(r"[\w.]*")
_MAX_PATTERNS = 10_000
_MAX_LENGTH = 2**16
_SECONDS = 2  # of processor time; 80 layers against the long expressions that Unsloth writes take 0.06


@dataclass(frozen=True, slots=True)
class Patterns:
    """The fields of adapter_config.json that choose modules, their types checked."""

    targets: list[str] | str
    excluded: list[str] | str = field(default_factory=list)
    layers: list[int] | None = None
    layers_pattern: list[str] = field(default_factory=list)
    rank_pattern: list[str] = field(default_factory=list)
    alpha_pattern: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Match:
    """A module that has an adapter. rank_key, alpha_key: the pattern that it matches, if any."""

    name: str
    rank_key: str | None
    alpha_key: str | None


def matches(patterns: Patterns, names: Sequence[str]) -> list[Match]:
    """The modules of `names` that have an adapter, in their order.
    Raises ValueError: a pattern is no regular expression, or matching takes too much time or memory."""
    request = {"patterns": asdict(patterns), "names": list(names)}
    if _has_only_names(patterns):
        answer = _answer(request)
    else:
        try:
            answer = run_isolated("nf4tui.models.peft_modules", request, seconds=_SECONDS)
        except IsolatedError as error:
            raise ValueError(f"its regular expressions: {error}") from None
    if "error" in answer:
        raise ValueError(answer["error"])
    return [Match(*item) for item in answer["matches"]]


def is_all_linear(targets: list[str] | str) -> bool:
    """Whether target_modules is PEFT's word for every linear layer but the head."""
    return isinstance(targets, str) and targets.lower() == "all-linear"


def _has_only_names(patterns: Patterns) -> bool:
    """Whether no pattern can be more than a name: a dot may match any character, but nothing repeats."""
    is_expression = isinstance(patterns.targets, str) and not is_all_linear(patterns.targets)
    if is_expression or isinstance(patterns.excluded, str):
        return False
    keys = [*patterns.rank_pattern, *patterns.alpha_pattern, *patterns.layers_pattern]
    return all(_PLAIN.fullmatch(key) for key in keys)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    patterns = Patterns(**request["patterns"])
    texts = [patterns.targets, patterns.excluded, *patterns.rank_pattern, *patterns.alpha_pattern]
    if len(texts) > _MAX_PATTERNS or any(isinstance(t, str) and len(t) > _MAX_LENGTH for t in texts):
        return {"error": "more or longer patterns than any adapter needs"}
    try:
        return {
            "matches": [
                (name, _first(patterns.rank_pattern, name), _first(patterns.alpha_pattern, name))
                for name in request["names"]
                if _is_target(patterns, name)
            ]
        }
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": f"not a regular expression ({' '.join(str(error).split())})"}


def _is_target(patterns: Patterns, name: str) -> bool:
    if patterns.excluded and _named(patterns.excluded, name):
        return False
    if is_all_linear(patterns.targets):
        return True
    if not _named(patterns.targets, name):
        return False
    if isinstance(patterns.targets, str) or name in patterns.targets or not patterns.layers:
        return True
    if not patterns.layers_pattern:
        found = re.match(r".*?\.[^.]*\.(?P<idx>\d+)\.", name)
    else:
        tries = (re.match(rf"(?:^|.*?\.){p}\.(?P<idx>\d+)\.", name) for p in patterns.layers_pattern)
        found = next((match for match in tries if match), None)
    return found is not None and int(found["idx"]) in patterns.layers


def _named(wanted: list[str] | str, name: str) -> bool:
    if isinstance(wanted, str):
        return re.fullmatch(wanted, name) is not None
    return name in wanted or any(name.endswith(f".{end}") for end in wanted)


def _first(keys: list[str], name: str) -> str | None:
    return next((key for key in keys if re.match(rf"(.*\.)?({key})$", name)), None)


if __name__ == "__main__":
    serve(_answer)
