"""Times and words of a run as a terminal may show them. All text from data passes through here."""

from datetime import datetime

from rich.cells import cell_len

from nf4tui.sanitize import one_line


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
