"""A rendered conversation or document: pieces of text and control tokens, each supervised or not.

The mask is made where the text is made. Nothing looks for an answer in finished text: content may hold
whatever a search would look for.
"""

from collections.abc import Iterable
from dataclasses import dataclass


class RenderError(ValueError):
    """A record cannot be written in the model's chat form; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the rendered text: plain text, or one control token."""

    text: str
    control: bool = False
    supervised: bool = False


def text_of(segments: Iterable[Segment]) -> str:
    """What transformers' apply_chat_template gives for the same conversation."""
    return "".join(segment.text for segment in segments)
