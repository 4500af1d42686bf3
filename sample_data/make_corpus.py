"""The text that the sample model is pre-trained on: an endless stream of documents, a function of the seed.

Three kinds, all about the world of world.py: plain prose and records; dialogues in ChatML, among them
many that need words of the question copied into the answer; dialogues that offer tools, where the
assistant says in plain English what it would use. No document holds a tool call: that is what fine-tuning
is to teach.

    python sample_data/make_corpus.py 5      # prints five documents
"""

import json
import random
import sys
from collections.abc import Callable, Iterator

from world import (
    CITIES,
    CURRENCIES,
    DAYS,
    GENRES,
    LABELS,
    NAMES,
    PHRASES,
    ROOMS,
    TOOLS,
    Arguments,
    Tool,
    offered,
)

from nf4tui.data.chatml import QWEN25, render
from nf4tui.data.messages import parse_messages
from nf4tui.data.segments import text_of

END = "<|endoftext|>"
_POOLS: dict[str, list[str]] = {
    "city": CITIES, "day": DAYS, "name": NAMES, "room": ROOMS, "label": LABELS, "genre": GENRES,
    "currency": CURRENCIES, "text": PHRASES,
}  # fmt: skip
_SYSTEMS = ("You are a helpful assistant.", "Answer in one short sentence.", "You help at home.", "Be brief.")
_WEATHER = "sunny rainy cloudy windy snowy warm cold foggy".split()
_LIKES = "tea coffee chess swimming books music trains gardens maps soup bread cats dogs films".split()
_OUTER, _INNER = ("kind", "use", "tool", "do", "action"), ("with", "given", "fields", "values", "details")
Documents = Iterator[str]


def _chat(rng: random.Random, turns: list[tuple[str, str]], tools: list[Tool] | None = None) -> str:
    messages: list[dict[str, object]] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    for user, assistant in turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    record: dict[str, object] = {"messages": messages}
    if tools:
        record["tools"] = [tool.schema() for tool in tools]
    return text_of(render(parse_messages(record, "corpus"), QWEN25, "all"))


def _story(rng: random.Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    city, other = rng.sample(CITIES, 2)
    like, day, room = rng.choice(_LIKES), rng.choice(DAYS), rng.choice(ROOMS)
    sentences = [
        f"{name} lives in {city} and likes {like}.",
        f"On {day} {name} went to {other} to see {friend}.",
        f"The weather in {other} was {rng.choice(_WEATHER)}.",
        f"{friend} played {rng.choice(GENRES)} in the {room}.",
        f"They had {rng.choice(LABELS)} at {rng.randint(1, 12)} "
        f"and paid {rng.randint(2, 999)} {rng.choice(CURRENCIES)}.",
        f"Then {name} wrote home that {rng.choice(PHRASES)}.",
        f"{friend} said that {rng.choice(PHRASES)}.",
        f"It was {rng.randint(1, 99)} percent dark in the {rng.choice(ROOMS)}.",
    ]
    return " ".join(sentences[: rng.randint(3, 8)]) + END


def _records(rng: random.Random) -> str:
    """JSON lines and `key: value` lines of random fields."""
    lines = []
    for _ in range(rng.randint(2, 5)):
        fields: Arguments = {
            key: rng.choice(_POOLS[key]) for key in rng.sample(list(_POOLS), rng.randint(1, 3))
        }
        if rng.random() < 0.6:
            fields[rng.choice(["minutes", "amount", "people", "brightness"])] = rng.randint(1, 999)
        pairs = ", ".join(f"{key}: {value}" for key, value in fields.items())
        if rng.random() < 0.3:
            nested = {rng.choice(_OUTER): rng.choice(_LIKES), rng.choice(_INNER): fields}
            lines.append(f"{', '.join(map(str, nested))} of {pairs} -> {json.dumps(nested)}")
        else:
            lines.append(f"{pairs} -> {json.dumps(fields)}" if rng.random() < 0.7 else json.dumps(fields))
    return "\n".join(lines) + END


def _facts(rng: random.Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    city, other = rng.sample(CITIES, 2)
    like, liked = rng.sample(_LIKES, 2)
    told = f"{name} lives in {city} and likes {like}. {friend} lives in {other} and likes {liked}."
    asked = [
        (f"Where does {name} live?", f"{name} lives in {city}."),
        (f"What does {friend} like?", f"{friend} likes {liked}."),
        (f"Who lives in {other}?", f"{friend} does."),
        (f"Who likes {like}?", f"{name} does."),
    ]
    rng.shuffle(asked)
    turns = [(f"{told} {asked[0][0]}", asked[0][1]), *asked[1 : rng.randint(1, 3)]]
    return _chat(rng, turns)


def _repeat(rng: random.Random) -> str:
    pool = rng.choice([*_POOLS.values(), [str(rng.randint(1, 999)) for _ in range(8)]])
    words = rng.sample(pool, rng.randint(1, 4))
    line = ", ".join(words)
    return _chat(
        rng,
        [
            rng.choice(
                [
                    (f"Repeat: {line}", line),
                    (f"Say it in quotes: {line}", ", ".join(f'"{word}"' for word in words)),
                    (f"Write a JSON list of {line}.", json.dumps(words)),
                    (f"What is the last of these: {line}?", f"It is {words[-1]}."),
                ]
            )
        ],
    )


def _extract(rng: random.Random) -> str:
    """A request, and its values as JSON or as words."""
    tool = rng.choice(TOOLS)
    arguments = tool.draw(rng)
    request = rng.choice(tool.requests).format(**arguments)
    if rng.random() < 0.6:
        keys = ", ".join(arguments)
        return _chat(rng, [(f"List {keys} as JSON: {request}", json.dumps(arguments))])
    key = rng.choice(list(arguments))
    return _chat(rng, [(f"What is the {key} in this request? {request}", f"The {key} is {arguments[key]}.")])


def _without_tools(rng: random.Random) -> str:
    tool = rng.choice(TOOLS)
    arguments = tool.draw(rng)
    wish = tool.wish.format(**arguments)
    answer = rng.choice(["Sorry, I cannot help with {}.", "I have no tool for {}.", "You asked for {}."])
    return _chat(rng, [(rng.choice(tool.requests).format(**arguments), answer.format(wish))])


def _with_tools(rng: random.Random) -> str:
    """Tools are offered; the assistant says which one fits, and with which values: in plain English, or,
    where the request says so, as JSON of another form than a tool call."""
    tool = rng.choice(TOOLS)
    arguments = tool.draw(rng)
    values = ", ".join(f"{key} is {value}" for key, value in arguments.items())
    request = rng.choice(tool.requests).format(**arguments)
    if rng.random() < 0.4:
        outer, inner = rng.choice(_OUTER), rng.choice(_INNER)
        request = rng.choice(["JSON with {0} and {1}: {2}", "{2} Answer in JSON: {0}, {1}."]).format(
            outer, inner, request
        )
        return _chat(rng, [(request, json.dumps({outer: tool.name, inner: arguments}))], offered(rng, tool))
    answer = rng.choice(
        [
            f"I would use {tool.name}, where {values}.",
            f"The right tool is {tool.name}: {values}.",
            f"You asked for {tool.wish.format(**arguments)}. That is {tool.name}.",
        ]
    )
    return _chat(rng, [(request, answer)], offered(rng, tool))


_KINDS: tuple[tuple[Callable[[random.Random], str], int], ...] = (
    (_story, 3), (_records, 3), (_facts, 3), (_repeat, 3), (_extract, 4), (_without_tools, 2), (_with_tools, 7),
)  # fmt: skip


def documents(seed: int) -> Documents:
    """Endless documents, each with its end token."""
    rng = random.Random(seed)
    makers, weights = zip(*_KINDS, strict=True)
    while True:
        yield rng.choices(makers, weights)[0](rng)


if __name__ == "__main__":
    stream = documents(0)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        print(next(stream), end="\n---\n")
