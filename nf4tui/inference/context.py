"""One sequence in an engine's key/value cache, kept between prompts.

A prompt that begins with what the cache holds costs only what is new: the next turn of a conversation.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from nf4tui.engine import Decoder, Engine

SMALLEST = 1024  # tokens, of a cache that is kept


class Context:
    """window: where given, a new cache is made for more than is asked for, so that later turns fit, but for
    no more tokens than these. reused: tokens that the last prompt found in the cache."""

    def __init__(self, engine: Engine, window: int | None = None) -> None:
        self._engine = engine
        self._window = window
        self._decoder: Decoder | None = None
        self._held: list[int] = []
        self._capacity = 0
        self.reused = 0

    def prompt(self, ids: Sequence[int], room: int) -> NDArray[Any]:
        """The logits [V] after `ids`, with room for `room` tokens behind them."""
        ids, needed = list(ids), len(ids) + room
        held = len(self._held)
        if self._decoder is None or needed > self._capacity or len(ids) <= held or ids[:held] != self._held:
            spare = 0 if self._window is None else min(max(2 * needed, SMALLEST), self._window)
            self._capacity = max(needed, spare)
            self._decoder = self._engine.start_decoding(self._capacity)
            held = 0
        self.reused = held
        self._held = ids
        return self._decoder.extend(ids[held:])

    def append(self, token: int) -> NDArray[Any]:
        """The logits after one more token. Raises ValueError before a prompt."""
        if self._decoder is None:
            raise ValueError("no prompt")
        self._held.append(token)
        return self._decoder.extend([token])
