"""An answer as text that comes in pieces, and why it ended."""

from collections.abc import Iterator, Sequence

from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.inference.context import Context
from nf4tui.inference.generate import continue_ids, stream_text
from nf4tui.inference.sampling import Sampling


class Answer:
    """Iterates over the text, once. Then `text` is all of it, `tokens` how many it took, and `finish` why it
    ended: `stop` (the model ended its turn), `stop_text` (a text of `stop` came, which is left out) or
    `length` (max_tokens)."""

    def __init__(
        self,
        context: Context,
        prompt: Sequence[int],
        tokenizer: ChatTokenizer,
        *,
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str] = (),
    ) -> None:
        self.text = ""
        self.tokens = 0
        self.finish = "stop"
        self._stop = tuple(stop)
        self._most = max_tokens
        self._tokenizer = tokenizer
        self._ids = continue_ids(context, prompt, tokenizer, max_tokens=max_tokens, sampling=sampling)

    def __iter__(self) -> Iterator[str]:
        for piece in self._until_stop(stream_text(self._counted(), self._tokenizer)):
            if piece:
                self.text += piece
                yield piece

    def _counted(self) -> Iterator[int]:
        for token in self._ids:
            self.tokens += 1
            if self.tokens == self._most:
                self.finish = "length"
            yield token

    def _until_stop(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces up to the first stop text. What could be the beginning of one is held back."""
        waiting = ""
        for piece in pieces:
            waiting += piece
            found = [place for text in self._stop if (place := waiting.find(text)) >= 0]
            if found:
                self.finish = "stop_text"
                yield waiting[: min(found)]
                return
            ready = len(waiting) - _possible_start(waiting, self._stop)
            yield waiting[:ready]
            waiting = waiting[ready:]
        yield waiting


def _possible_start(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of `stop`."""
    longest = max((len(item) - 1 for item in stop), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(item.startswith(text[-length:]) for item in stop):
            return length
    return 0
