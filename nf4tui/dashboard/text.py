"""Numbers, times and words of a run as a terminal may show them. All text from data passes through here."""

import math
from datetime import datetime

from rich.cells import cell_len, chop_cells

from nf4tui.headless import number
from nf4tui.sanitize import one_line


def fixed(value: float) -> str:
    """Four decimals; what is not finite is said."""
    return number(value, ".4f")


def compact(value: float) -> str:
    """Three digits or so, with k or M for thousands and millions."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if 10 * size <= value < math.inf:
            return f"{value / size:.{1 if value < 100 * size else 0}f}{unit}"
    return number(value, ".4g")


def scientific(value: float, digits: int = 1) -> str:
    """1.5e-7: `digits` decimals and no leading zeros in the exponent."""
    if value == 0 or not math.isfinite(value):
        return number(value, ".0f")
    mantissa, _, exponent = format(value, f".{digits}e").partition("e")
    return f"{mantissa}e{int(exponent)}"


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour; days before the hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {clock}" if days else clock


def clock(time: str) -> str:
    """HH:MM:SS here of an event's time; the start of its text where that is no time."""
    try:
        return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S}"
    except (ValueError, OverflowError):
        return one_line(time)[:8]


def fitted(text: str, width: int) -> str:
    """One safe line of at most `width` cells; of what is longer the end, which tells paths and tensors
    apart."""
    text = one_line(text)
    if cell_len(text) <= width:
        return text
    if width < 2:
        return ""
    while cell_len(text) > width - 1:
        text = text[max(1, (cell_len(text) - width) // 2) :]
    return f"…{text}"


def wrapped(text: str, width: int) -> list[str]:
    """The text, safe for a terminal, in lines of at most `width` cells, cut at blanks where there are any."""
    lines = [""]
    for word in one_line(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            pieces = chop_cells(word, width)
            lines = [*lines[:-1], *pieces] if not lines[-1] else [*lines, *pieces]
    return lines
