"""Records what transformers makes of conversations: text, ids and the mask of the last answers.

    python benchmarks/peers/make_renderings.py sample_data/model tests/data tests/data/renderings

For each published template every conversation of conversations.json is rendered by apply_chat_template. The
ids are those of the whole text, except that control tokens inside content are plain text: they are swapped for
private-use characters before rendering, the text is cut at the template's own control tokens, and each piece
is encoded with the swap undone. The mask is told from renderings of the conversation's beginnings.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLACEHOLDERS = {name: chr(0xE7F0 + number) for number, name in enumerate(CONTROLS)}


def swapped(value: Any, *, back: bool = False) -> Any:
    """`value` with control tokens as placeholders, or the other way round."""
    if isinstance(value, str):
        for name, placeholder in PLACEHOLDERS.items():
            value = value.replace(placeholder, name) if back else value.replace(name, placeholder)
        return value
    if isinstance(value, dict):
        return {key: swapped(item, back=back) for key, item in value.items()}
    return [swapped(item, back=back) for item in value] if isinstance(value, list) else value


def encoded(text: str, plain: Tokenizer) -> list[tuple[int, int, int]]:
    """(id, start, end) of a rendering: spans in characters of `text`."""
    tokens = []
    at = 0
    for piece in re.split("(" + "|".join(map(re.escape, CONTROLS)) + ")", text):
        if piece in CONTROLS:
            tokens.append((plain.token_to_id(piece), at, at + len(piece)))
        elif piece:
            whole = swapped(piece, back=True)
            offsets = []  # of every character of `piece` in `whole`, and its end
            place = 0
            for character in piece:
                offsets.append(place)
                place += len(swapped(character, back=True))
            offsets.append(place)
            for token, (start, end) in zip(*_ids_and_spans(whole, plain), strict=True):
                first = max(index for index, offset in enumerate(offsets) if offset <= start)
                last = min(index for index, offset in enumerate(offsets) if offset >= end)
                tokens.append((token, at + first, at + last))
        at += len(piece)
    return tokens


def _ids_and_spans(text: str, plain: Tokenizer) -> tuple[list[int], list[tuple[int, int]]]:
    encoding = plain.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def record(tokenizer: Any, plain: Tokenizer, conversation: dict[str, Any]) -> dict[str, Any]:
    messages, tools = swapped(conversation["messages"]), swapped(conversation.get("tools"))

    def text_of(count: int, *, prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            messages[:count], tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        return text

    whole = text_of(len(messages), prompt=False)
    supervised = [False] * len(whole)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = text_of(index, prompt=True) if index else None, text_of(index + 1, prompt=False)
            if before is None:  # Qwen's templates read messages[0], so nothing can be rendered before it
                header = "<|im_start|>assistant\n"
                before = after[: after.index(header) + len(header)]
            assert whole.startswith(after) and after.startswith(before) and after.endswith("<|im_end|>\n")
            supervised[len(before) : len(after) - 1] = [True] * (len(after) - 1 - len(before))
    tokens = encoded(whole, plain)
    return {
        "text": swapped(whole, back=True),
        "ids": [token for token, _, _ in tokens],
        "supervised": "".join("01"[all(supervised[start:end])] for _, start, end in tokens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("templates", type=Path, help="folder of qwen2.5_ and qwen2_chat_template.jinja")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    conversations = json.loads((arguments.out / "conversations.json").read_text(encoding="utf-8"))
    qwen25 = (arguments.templates / "qwen2.5_chat_template.jinja").read_text(encoding="utf-8")
    doubled = qwen25.replace('{\\"name\\": <', '{{\\"name\\": <').replace("json-object>}", "json-object>}}")
    assert doubled != qwen25
    base = qwen25.replace(
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "You are a helpful assistant."
    )
    templates = {
        "qwen2.5": qwen25,
        "qwen2.5-double-braces": doubled,
        "qwen2.5-base": base,
        "qwen2": (arguments.templates / "qwen2_chat_template.jinja").read_text(encoding="utf-8"),
    }
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    plain = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    plain.encode_special_tokens = True
    for name, template in templates.items():
        tokenizer.chat_template = template
        recorded = {}
        for title, conversation in conversations.items():
            uses_tools = "tools" in conversation or any(
                "tool_calls" in message or message["role"] == "tool" for message in conversation["messages"]
            )
            if name != "qwen2" or not uses_tools:
                recorded[title] = record(tokenizer, plain, conversation)
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in recorded.items())
        text = f'{{"template": {json.dumps(template)},\n"renderings": {{\n{lines}\n}}}}\n'
        (arguments.out / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, len(recorded))


if __name__ == "__main__":
    main()
