"""Text from data, names, paths, files of a model and exceptions never reaches a terminal as more than text.

The dashboard is held to the same on a pseudo-terminal in tests/dashboard/test_terminal.py; the sanitiser itself
in tests/test_sanitize.py.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nf4tui.commands import data as data_command
from nf4tui.commands import train as train_command

Run = Callable[..., Any]

# Clipboard, title, clear screen, C1, DEL, bidi, zero-width, line separators, markup that Textual would obey.
ESCAPES = "\x1b]52;c;aGFja2Vk\x07\x1b]0;owned\x07\x1b[2J"
MARKUP = "[bold]x[/][/[@click=app.quit]y"
EVIL = f"\x7f\x9b31m\u202eevil\u2066\u200b\u2028\ufeff\x9d0;t\x9c{ESCAPES}{MARKUP}"
NAME = EVIL.replace("/", "")  # of a file
SHOWN = "\\x1b]52;c;aGFja2Vk\\x07"


def test_what_hides_is_seen_by_the_test_itself(hidden: Any) -> None:
    assert len(hidden.findall(EVIL)) == sum(not character.isprintable() for character in EVIL) == 14


def write(path: Path, record: Any) -> None:
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": EVIL, "content": "x"}]},
        {"messages": [{"role": "user", "content": {EVIL: EVIL}}]},
        {"messages": EVIL},
        {EVIL: 1, "x": EVIL},
        {"prompt": [EVIL], "completion": []},
        {"instruction": EVIL, "output": [EVIL]},
        {"conversations": [{"from": EVIL, "value": EVIL}]},
    ],
    ids=lambda record: next(iter(record))[:12].encode("ascii", "backslashreplace").decode(),
)
def test_values_and_keys_of_data_are_quoted_harmlessly(
    data: Path, refused: Run, train: Run, record: Any
) -> None:
    write(data, record)
    refused(*train())
    refused("data", data, printed=True)


def test_a_key_that_hides_is_quoted_harmlessly(data: Path, refused: Run, train: Run) -> None:
    """JSON lets DEL, C1 and Unicode's own controls stand in a string unescaped."""
    key = "a\x7f\x9b\u202e\u200b\u2028"
    data.write_text(f'{{"{key}": 1, "{key}": 2}}\n', encoding="utf-8")
    refused(*train(), says=('the key "a\\x7f\\x9b\\u202e\\u200b\\u2028" is given twice',))


def test_a_record_that_is_shown_is_shown_harmlessly(
    data: Path, model: Path, nf4tui: Run, hidden: Any
) -> None:
    turns = [{"role": "user", "content": f"{EVIL}\n"}, {"role": "assistant", "content": f"{EVIL}\r\n\tz"}]
    write(data, {"messages": turns})
    found = nf4tui("data", data, "--model", model)
    assert found.code == 0 and not hidden.search(found.out)
    assert found.out.count(SHOWN) == 2 and found.out.count(MARKUP) == 2


@pytest.fixture
def named(place: Path, data: Path, model: Path, train: Run) -> dict[str, list[Any]]:
    """Command lines whose paths attack the terminal, by what is wrong with them."""
    folder = place / NAME
    folder.mkdir()
    (folder / "a\nb.jsonl").write_text("{", encoding="utf-8")
    (folder / "config.toml").write_text(f"{json.dumps(EVIL)} = 1\n".replace("\x7f", ""), encoding="utf-8")
    return {
        "data": train(data=folder / "a\nb.jsonl"),
        "data that is not there": train(data=folder / "gone"),
        "glob": train(data=folder / "*.csv"),
        "folder as data": train(data=folder),
        "not UTF-8": train(data=place / "\udcff\udc9b.jsonl"),
        "model": train(model=folder),
        "hub id": train(model=NAME),
        "adapter": train("--adapter", folder),
        "out": train(out=folder),
        "out with controls": train(out=EVIL),
        "settings": train("--config", folder / "config.toml"),
        "settings that are not there": train("--config", folder / "gone"),
        "flag": train(f"--{EVIL}"),
        "value": train("--rank", EVIL),
        "choice": train("--overlong", EVIL),
        "command": [EVIL],
        "eval": ["eval", folder / "gone", "--model", model],
        "watch": ["watch", folder / "gone"],
        "verify": ["verify", "--case", folder],
    }


def test_paths_and_words_of_a_command_line_are_quoted_harmlessly(
    named: dict[str, list[Any]], refused: Run
) -> None:
    for what, words in named.items():
        line = refused(*words)
        if what not in ("folder as data", "not UTF-8", "eval"):
            assert "\\x1b" in line, what


def test_an_environment_variable_is_quoted_harmlessly(
    refused: Run, train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NF4TUI_RANK", EVIL)
    refused(*train(), says=("NF4TUI_RANK", SHOWN))
    monkeypatch.delenv("NF4TUI_RANK")
    monkeypatch.setenv(f"NF4TUI_{EVIL.replace('=', '')}", "1")
    refused(*train(), says=("\\x1b]52;C;", "there is no setting"))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


def with_tensor(model: Path) -> None:
    """One more tensor behind the others."""
    path = model / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header[f"{EVIL}\n"] = {"dtype": "U8", "shape": [1], "data_offsets": [len(body), len(body) + 1]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body + b"\0")


def with_entry(model: Path) -> None:
    header = json.dumps({f"{EVIL}\n": 1}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def with_index(model: Path) -> None:
    (model / "model.safetensors").unlink()
    index = json.dumps({"weight_map": {EVIL: f"{EVIL}.safetensors"}})
    (model / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def with_key_twice(model: Path) -> None:
    (model / "config.json").write_text(f"{{{json.dumps(EVIL)}: 1, {json.dumps(EVIL)}: 1}}", encoding="utf-8")


CHANGES: dict[str, Callable[[Path], None]] = {
    "tensor name": with_tensor,
    "header entry": with_entry,
    "index": with_index,
    "key": with_key_twice,
    "config value": lambda model: edit(model / "config.json", hidden_act=EVIL),
    "rope": lambda model: edit(model / "config.json", rope_scaling={EVIL: EVIL}),
    "end token": lambda model: edit(model / "tokenizer_config.json", eos_token=EVIL),
    "tokenizer": lambda model: edit(model / "tokenizer.json", model={"type": EVIL}),
    "version": lambda model: edit(model / "tokenizer.json", version=EVIL),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_model_says_of_itself_is_quoted_harmlessly(
    model: Path, refused: Run, train: Run, change: Callable[[Path], None]
) -> None:
    """Tensor names, file names, fields, and the text of exceptions that quote them."""
    change(model)
    refused(*train())


def test_a_run_whose_every_name_attacks_prints_and_logs_text_only(
    place: Path, data: Path, model: Path, nf4tui: Run, hidden: Any
) -> None:
    folder = place / NAME
    folder.mkdir()
    data = shutil.move(data, folder / f"{NAME}\n.jsonl")
    model = shutil.move(model, folder / "model")
    out = place / f"run \u202e\u200b{MARKUP.replace('/', '')}"
    bad = folder / "bad.jsonl"
    write(bad, {EVIL: EVIL})
    words = ["train", data, bad, "--model", model, "--out", out, "--steps", "2", "--skip-bad", "--no-tui"]
    found = nf4tui(*words)
    assert (found.code, found.err) == (0, "")
    log = (out / "log.txt").read_text(encoding="utf-8")
    for text in (found.out, log):
        assert not hidden.search(text)
        assert SHOWN in text and "run \\u202e\\u200b[bold]x" in text
    assert log.count("\n") == found.out.count("\n")
    assert (out / "events.jsonl").read_bytes().isascii() and b"\x1b" not in (
        out / "events.jsonl"
    ).read_bytes()
    watched = nf4tui("watch", out)
    assert watched.code == 0 and watched.out == found.out


def test_json_holds_the_text_itself_but_no_byte_of_it_that_a_terminal_obeys(
    place: Path, data: Path, nf4tui: Run, hidden: Any
) -> None:
    name = NAME.replace("\x7f", "")  # JSON lets DEL stand, and terminals ignore it
    path = Path(shutil.move(data, place / f"{name}\n.jsonl"))
    found = nf4tui("data", path, "--json")
    assert found.code == 0 and not hidden.search(found.out) and found.out.count("\n") == 1
    assert json.loads(found.out)["files"][0]["path"] == str(path)
    write(path, {EVIL: 1})
    found = nf4tui("train", path, "--model", "x", "--json")
    assert found.code == 2 and not hidden.search(found.out + found.err) and found.out.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "words", "code"), [(data_command, ["data", "x"], 1), (train_command, ["train", "x"], 4)]
)
def test_the_text_of_an_exception_that_nobody_expected_is_one_harmless_line(
    place: Path,
    nf4tui: Run,
    hidden: Any,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    words: list[str],
    code: int,
) -> None:
    def fail(*arguments: Any, **more: Any) -> int:
        raise ValueError(f"{EVIL}\n\ud800")

    monkeypatch.setattr(module, "run" if module is data_command else "run_flags", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    found = nf4tui(*words)
    assert (found.code, found.out) == (code, "")
    assert not hidden.search(found.err) and found.err.count("\n") == 1
    assert "a bug in nf4tui (ValueError: \\x7f\\x9b31m" in found.err and SHOWN in found.err
    assert "Traceback" in next(place.glob("nf4tui-crash-*.txt")).read_text(encoding="utf-8")
