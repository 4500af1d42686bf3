"""A rendered conversation as token ids with their mask, and an answer read back.

Token ids are those of the whole rendered text: all text between two control tokens is encoded in one go,
since merges do not stop at the header's newline. A token that covers characters from both sides of the
mask's border (content that starts with a newline can merge with the header's) is not supervised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nf4tui.data import strict_json
from nf4tui.data.chatml import CALL_CLOSE, CALL_OPEN
from nf4tui.data.conversation import Conversation, Document, ToolCall
from nf4tui.data.segments import RenderError, Segment, text_of
from nf4tui.data.tokenizer import ChatTokenizer
from nf4tui.errors import InputError

SUPERVISE = ("last", "all", "completion")


@dataclass(frozen=True, slots=True)
class Tokens:
    """ids: [n] int32. supervised: [n] bool."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.bool_]


def tokenize(segments: Iterable[Segment], tokenizer: ChatTokenizer) -> Tokens:
    """Ids and mask of rendered segments."""
    ids: list[int] = []
    supervised: list[bool] = []
    for control, group in groupby(segments, key=lambda segment: segment.control):
        if control:
            for segment in group:
                ids.append(tokenizer.control_token_id(segment.text))
                supervised.append(segment.supervised)
        else:
            pieces = list(group)
            encoding = tokenizer.encode(text_of(pieces))
            ids += encoding.ids
            supervised += _span_mask(pieces, encoding.spans)
    return Tokens(np.array(ids, np.int32), np.array(supervised, np.bool_))


def document_segments(document: Document, tokenizer: ChatTokenizer) -> list[Segment]:
    """A document as in pre-training: its text, then the token that ends documents; all of it supervised."""
    end = Segment(tokenizer.document_end, control=True, supervised=True)
    return [Segment(document.text, supervised=True), end]


def prompt_ids(conversation: Conversation, tokenizer: ChatTokenizer) -> list[int]:
    """Ids of everything before the last assistant turn, and the header of the turn to generate. Where there
    is no assistant turn after the last other one, of the whole conversation and that header.
    Raises InputError if the model's chat form cannot write it."""
    messages = conversation.messages
    if messages and messages[-1].role == "assistant":
        messages = messages[:-1]
    try:
        segments = tokenizer.form.prompt(replace(conversation, messages=messages))
    except RenderError as error:
        where = f"{conversation.source}:1: " if conversation.source else ""
        raise InputError(f"{where}{error}") from None
    return [int(token) for token in tokenize(segments, tokenizer).ids]


def parse_tool_calls(text: str) -> list[ToolCall] | None:
    """The tool calls in an answer: [] if it has no tag of one, None if any is malformed. Between the tags
    stands one JSON object with `name`, text, and `arguments`, an object, and nothing else."""
    calls = []
    pieces = text.split(CALL_OPEN)
    if CALL_CLOSE in pieces[0]:
        return None
    for piece in pieces[1:]:
        body, close, rest = piece.partition(CALL_CLOSE)
        try:
            value = strict_json.decode(body)
        except strict_json.JsonProblemError:
            return None
        if (
            not close
            or CALL_CLOSE in rest
            or not isinstance(value, dict)
            or value.keys() != {"name", "arguments"}
        ):
            return None
        if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
            return None
        calls.append(ToolCall(value["name"], value["arguments"]))
    return calls


def _span_mask(pieces: Sequence[Segment], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """A token is supervised if all characters that it covers are."""
    flags = np.concatenate([np.full(len(piece.text), piece.supervised) for piece in pieces])
    unsupervised_before = np.concatenate([[0], np.cumsum(~flags)])
    return [bool(unsupervised_before[start] == unsupervised_before[end]) for start, end in spans]
