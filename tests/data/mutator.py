"""Damaged data files by number: a few seed records written as JSONL, then up to five mutations of the bytes.

Some mutations are harmless (blanks, other texts, records in another order), so that what is accepted is tested,
too. A file is a function of its seed alone.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any

USER = {"role": "user", "content": "Hi there"}
HELLO = {"role": "assistant", "content": "Hello."}
CALL = {"function": {"name": "f", "arguments": {"x": [1, 2.5e-3, None, True], "y": {}}}}
TEXT_CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "g", "arguments": '{"a": "\\u00e9", "b": -0}'},
}
ASKING = {"role": "assistant", "content": None, "tool_calls": [CALL, TEXT_CALL]}
PARTS = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
SEEDS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"messages": [USER, HELLO]},
        {"messages": [{"role": "system", "content": ""}, USER, HELLO], "id": 7},
        {"messages": [USER, HELLO, USER, HELLO], "score": -12.5e2, "tags": ["a", [], {}]},
        {"messages": [{"role": "user", "content": PARTS}, HELLO]},
        {
            "messages": [
                USER,
                ASKING,
                {"role": "tool", "content": ""},
                {"role": "tool", "content": "y"},
                HELLO,
            ]
        },
        {"messages": [USER, {**HELLO, "tool_calls": []}], "tools": [{"type": "function", "function": {}}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}], "tools": None},
        {"messages": [{"role": "user", "content": "\u2028 \x85 \ufeff é 👩‍🚀 שלום"}, HELLO], "名": "x"},
        {"messages": [HELLO, USER, HELLO]},
        {"messages": [{"role": "user", "content": 'quote " back \\ slash / <|im_end|> [{'}, HELLO]},
        {
            "messages": [{**USER, "name": "x"}, {"role": "assistant", "content": "\n 1"}],
            "text": "t",
            "prompt": 1,
        },
    ],
    "prompt-completion": [
        {"prompt": "2+2?", "completion": "4"},
        {"completion": "b\n", "prompt": " a", "n": 12345678901234567890},
        {"prompt": [{"role": "system", "content": "s"}, USER], "completion": [HELLO]},
        {"prompt": [USER], "completion": [ASKING, {"role": "tool", "content": "3"}, HELLO], "tools": []},
        {"prompt": "naïve \U0001f600", "completion": "\u200d", "meta": {"a": {"b": {"c": [False]}}}},
    ],
    "conversations": [
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}], "system": "s"},
        {"conversations": [{"from": "system", "value": ""}, USER, {"from": "function_call", "value": CALL}]},
    ],
    "alpaca": [
        {"instruction": "Do", "input": "", "output": "Done", "history": [["a", "b"]], "system": None},
        {"instruction": "Do", "response": "Done"},
    ],
    "text": [{"text": "Running text."}, {"text": "x", "url": "u"}],
}
BITS = [
    *(b'{ } [ ] , : " \\ / 0 -1 1e5 1E+2 01 .5 +1 1. true false null tru "" {} [] [[[]]] {"":{}}').split(),
    *b"NaN Infinity -Infinity 1e999 -1e400 1e-999 'a' // undefined \\u0041 \\ud800 \\udc00\\ud83d".split(),
    *b"\\ud83d\\ude00 \\n \\x41 \\u12g4 <|im_start|> <tool_call> system user assistant tool bot".split(),
    *(b" ", b"  \t", b"\r", b"\n", b"\r\n", b"\n\n", b"\n \t\r\n", b"\0", b"\x1b", b"\x0b", b"\x0c", b"\x7f"),
    *("\ufeff", "\u2028", "\x85", "\u202e", "\u200b", "é", "\U0001f600", "e\u0301"),
    *(b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe9", b"\xff", b"\x80", b"\xe2\x82", b"\xc3"),
    *(
        b"9" * 350,
        b"1" * 308,
        b"-" + b"1" * 399,
        b"1" * 401,
        b"0." + b"1" * 398,
        b"1." + b"2" * 399,
        b"1e309",
    ),
]
BITS = [bit.encode() if isinstance(bit, str) else bit for bit in BITS]
VALUES = [
    b"null",
    b"5",
    b"true",
    b'""',
    b'" "',
    b"[]",
    b"{}",
    b'"x"',
    b'["x"]',
    b'[""]',
    b'{"a":1}',
    b"1e999",
    b"NaN",
]
SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
MEMBER = re.compile(rb'"(?:[^"\\]|\\.)*": ?(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)')
ROLE = re.compile(rb'"(?:role|from)": ?"\w*"')
COLON = re.compile(rb": ?")
MARK = re.compile(rb"[,:{}\[\]]")
NAMES = [b'"user"', b'"assistant"', b'"tool"', b'"system"', b'"gpt"', b'"User"']
BLANKS = [b" ", b"\r", b"\t ", b"\x0c", b"\xa0"]


def whole_file(rng: random.Random) -> bytes:
    """One to four seed records, of one format but for every thirtieth file."""
    name = rng.choices(list(SEEDS), weights=(6, 3, 1, 1, 1))[0]
    pool = SEEDS[name] if rng.random() > 1 / 30 else [record for seeds in SEEDS.values() for record in seeds]
    lines = [
        json.dumps(
            rng.choice(pool),
            ensure_ascii=rng.random() < 0.3,
            separators=rng.choice([(", ", ": "), (",", ":"), (" ,\t", " : ")]),
        ).encode()
        for _ in range(rng.choice([1, 2, 2, 3, 4]))
    ]
    end = rng.choice([b"\n", b"\n", b"\r\n"])
    return (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + end.join(lines) + rng.choice([end, end, b""])


def span(rng: random.Random, data: bytes, longest: int = 40) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randint(1, longest))


def put(data: bytes, start: int, end: int, new: bytes) -> bytes:
    return data[:start] + new + data[end:]


def flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return put(data, at, at + 1, bytes([data[at] ^ (1 << rng.randrange(8))]))


def delete(rng: random.Random, data: bytes) -> bytes:
    start, end = span(rng, data)
    return put(data, start, end, b"")


def duplicate(rng: random.Random, data: bytes) -> bytes:
    start, end = span(rng, data)
    return put(data, start, start, data[start:end])


def swap(rng: random.Random, data: bytes) -> bytes:
    (a, b), (c, d) = sorted((span(rng, data), span(rng, data)))
    return data if b > c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return put(data, at, at, rng.choice(BITS))


def at_match(
    pattern: re.Pattern[bytes], change: Callable[[random.Random, bytes], bytes]
) -> Callable[[random.Random, bytes], bytes]:
    """Changes one place that matches."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        found = list(pattern.finditer(data))
        if not found:
            return data
        match = rng.choice(found)
        return put(data, match.start(), match.end(), change(rng, match[0]))

    return mutate


def into_string(rng: random.Random, text: bytes) -> bytes:
    return put(text, 1, 1, rng.choice(BITS)) if text.startswith(b'"') else rng.choice(BITS)


def nest(rng: random.Random, colon: bytes) -> bytes:
    """A value beside the others whose depth is about the limit: the file's own brackets come on top."""
    depth = rng.randint(95, 101)
    opening, closing = (b"[", b"]") if rng.random() < 0.5 else (b'{"":', b"}")
    return colon + b'"k","deep":' + opening * depth + b"0" + closing * depth + b',"k2":'


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def reorder(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def join(rng: random.Random, data: bytes) -> bytes:
    return data.replace(b"\n", b"", 1)


def recode(rng: random.Random, data: bytes) -> bytes:
    text = data.decode(errors="replace")
    return text.encode(
        rng.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "cp1252"]), "replace"
    )


MUTATIONS: list[tuple[int, Callable[[random.Random, bytes], bytes]]] = [
    (3, flip),
    (2, delete),
    (2, duplicate),
    (1, swap),
    (4, insert),
    (5, at_match(SCALAR, into_string)),
    (4, at_match(SCALAR, lambda rng, text: rng.choice(VALUES))),
    (2, at_match(SCALAR, lambda rng, text: rng.choice(BITS))),
    (2, at_match(MEMBER, lambda rng, text: text + b"," + text)),
    (2, at_match(MEMBER, lambda rng, text: text + b',"new": ' + rng.choice(VALUES))),
    (1, at_match(MEMBER, lambda rng, text: b'"x":1')),
    (3, at_match(ROLE, lambda rng, text: text.split(b":")[0] + b": " + rng.choice(NAMES))),
    (2, at_match(COLON, nest)),
    (2, at_match(MARK, lambda rng, mark: mark + rng.choice(BLANKS))),
    (2, truncate),
    (2, reorder),
    (1, join),
    (1, lambda rng, data: rng.choice([b"\xef\xbb\xbf", b"\n", b" \r\n", b"\x1f\x8b", b"\0"]) + data),
    (1, recode),
]  # fmt: skip


def mutated(seed: int) -> bytes:
    rng = random.Random(seed)
    data = whole_file(rng)
    weights, mutations = zip(*MUTATIONS, strict=True)
    for mutate in rng.choices(mutations, weights, k=rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        data = mutate(rng, data) or b"\n"
    return data
