"""What can be wrong with a record, and where in it."""

import json
from typing import Any

from nf4tui.data.strict_json import Path


class RecordProblemError(ValueError):
    """What is wrong with a record, and at which path of keys and indices."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def shown(value: Any) -> str:
    """A short JSON form of a value for an error message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
