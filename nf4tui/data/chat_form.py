"""How a model writes conversations: the forms that are known natively, behind one interface."""

from collections.abc import Sequence
from typing import Protocol

from nf4tui.data.chatml import TURN_END, TURN_START, ChatStyle, render
from nf4tui.data.conversation import Conversation
from nf4tui.data.segments import RenderError, Segment


class ChatForm(Protocol):
    """Renders conversations with their loss mask.

    name: for people. end: the control token that ends an answer. identity: text that differs wherever two
    forms could render anything differently.
    """

    @property
    def name(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def identity(self) -> str: ...

    def render(
        self, conversations: Sequence[Conversation], supervise: str
    ) -> list[list[Segment] | RenderError]:
        """The segments of each conversation, or why it has none. supervise: `last`, `all`, `completion`."""
        ...

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """The whole conversation and the header of the answer to come. Raises RenderError."""
        ...


class NativeForm:
    """Qwen2's, Qwen2.5's or plain ChatML, as chatml.py writes them."""

    end = TURN_END

    def __init__(self, style: ChatStyle) -> None:
        self.style = style

    @property
    def name(self) -> str:
        """The style's name."""
        return self.style.name

    @property
    def identity(self) -> str:
        """Every field of the style."""
        return repr(self.style)

    def render(
        self, conversations: Sequence[Conversation], supervise: str
    ) -> list[list[Segment] | RenderError]:
        """See ChatForm."""
        return [self._rendered(conversation, supervise) for conversation in conversations]

    def _rendered(self, conversation: Conversation, supervise: str) -> list[Segment] | RenderError:
        try:
            return render(conversation, self.style, supervise)
        except RenderError as error:
            return error

    def prompt(self, conversation: Conversation) -> list[Segment]:
        """See ChatForm."""
        header = (Segment(TURN_START, control=True), Segment("assistant\n"))
        return [*render(conversation, self.style), *header]
