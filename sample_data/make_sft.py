"""Writes train.jsonl and heldout.jsonl: tool-call conversations in the `messages` format.

    python sample_data/make_sft.py

The same files for the same seed. A held-out request never occurs in train.jsonl, and every value of the
held-out half of each pool (cities, names, ...) is new to the fine-tuning: what is tested is the task, not
the memory of it.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path

from world import TOOLS, Tool, offered

SEED = 20
TRAIN, HELDOUT = 400, 100
_HERE = Path(__file__).resolve().parent


def conversation(rng: random.Random, tool: Tool, pools: Mapping[str, list[str]]) -> dict[str, object]:
    """One request and its one right tool call."""
    arguments = tool.draw(rng, pools)
    call = {"type": "function", "function": {"name": tool.name, "arguments": arguments}}
    return {
        "tools": [offer.schema() for offer in offered(rng, tool)],
        "messages": [
            {"role": "user", "content": rng.choice(tool.requests).format(**arguments)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ],
    }


def split_pools(rng: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each string parameter: the values of the fine-tuning (three quarters), and all values."""
    seen: dict[str, list[str]] = {}
    everything: dict[str, list[str]] = {}
    for tool in TOOLS:
        for name, values in tool.parameters.items():
            if name not in seen and not isinstance(values, range):
                mixed = rng.sample(values, len(values))
                seen[name], everything[name] = mixed[: len(mixed) * 3 // 4], mixed
    return seen, everything


def make() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The two lists of conversations."""
    rng = random.Random(SEED)
    seen, everything = split_pools(rng)
    train = [conversation(rng, TOOLS[number % len(TOOLS)], seen) for number in range(TRAIN)]
    asked = {str(item["messages"]) for item in train}
    heldout: list[dict[str, object]] = []
    while len(heldout) < HELDOUT:
        item = conversation(rng, TOOLS[len(heldout) % len(TOOLS)], everything)
        if str(item["messages"]) not in asked:
            asked.add(str(item["messages"]))
            heldout.append(item)
    rng.shuffle(train)
    return train, heldout


def main() -> None:
    """Writes both files beside this script."""
    for name, items in zip(("train", "heldout"), make(), strict=True):
        lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        (_HERE / f"{name}.jsonl").write_text(lines, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
