"""The sample data are what their scripts make, and the task is not in the pre-training text."""

import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from nf4tui.data.tokenizer import check_vocabulary, load_tokenizer
from nf4tui.models.load import load_model

FOLDER = Path(__file__).resolve().parents[2] / "sample_data"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Loads a script of sample_data by name, with its neighbours importable."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"sample_{name}", FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"sample_{name}", module)
        spec.loader.exec_module(module)
        return module

    return load


def records(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def test_the_files_are_what_make_sft_writes(script) -> None:
    train, heldout = script("make_sft").make()
    assert train == records("train.jsonl")
    assert heldout == records("heldout.jsonl")
    assert (len(train), len(heldout)) == (400, 100)


def test_no_heldout_request_was_trained_on() -> None:
    trained = {str(record["messages"][0]) for record in records("train.jsonl")}
    asked = [str(record["messages"][0]) for record in records("heldout.jsonl")]
    assert len(set(asked)) == len(asked)
    assert not trained & set(asked)


def test_heldout_has_values_that_training_never_shows() -> None:
    def cities(name: str) -> set[str]:
        calls = [record["messages"][-1]["tool_calls"][0]["function"] for record in records(name)]
        return {call["arguments"]["city"] for call in calls if call["name"] == "get_weather"}

    assert cities("heldout.jsonl") - cities("train.jsonl")


def test_no_document_of_the_corpus_makes_a_tool_call(script) -> None:
    for document in islice(script("make_corpus").documents(5), 3000):
        # The tools preamble explains the form once; no assistant turn uses it.
        for turn in document.split("<|im_start|>assistant\n")[1:]:
            assert "<tool_call>" not in turn
            assert '"arguments"' not in turn


def test_every_request_names_every_argument_and_every_tool_is_asked_for(script) -> None:
    called = set()
    for record in records("train.jsonl") + records("heldout.jsonl"):
        function = record["messages"][1]["tool_calls"][0]["function"]
        called.add(function["name"])
        assert function["name"] in {tool["function"]["name"] for tool in record["tools"]}
        for value in function["arguments"].values():
            assert str(value) in record["messages"][0]["content"]
    assert called == {tool.name for tool in script("world").TOOLS}


def test_the_model_is_small_loads_and_fits_its_tokenizer() -> None:
    assert sum(path.stat().st_size for path in (FOLDER / "model").iterdir()) <= 5 * 2**20
    weights = load_model(FOLDER / "model")
    check_vocabulary(load_tokenizer(FOLDER / "model"), weights.config.vocab_size)
