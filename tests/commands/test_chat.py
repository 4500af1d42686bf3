"""`nf4tui chat` over a pipe, on a terminal, and by its commands."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui.commands.chat import Talk
from nf4tui.inference.load import Loaded, load
from nf4tui.inference.sampling import Sampling

ASK = "What is the weather in Paris?"


@pytest.fixture(scope="session")
def loaded(sample_model: Path) -> Loaded:
    return load(str(sample_model), None, "cpu")


@pytest.fixture
def talk(loaded: Loaded) -> Callable[..., Talk]:
    def make(**changes: Any) -> Talk:
        arguments = {
            "tools": (),
            "system": None,
            "max_tokens": 8,
            "sampling": Sampling(),
            "stop": (),
            "compare": False,
        }
        return Talk(loaded, **{**arguments, **changes})

    return make


def roles(talk: Talk) -> list[str]:
    return [message.role for message in talk._messages]


@pytest.fixture
def piped(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Any]:
    def call(text: bytes, *arguments: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "nf4tui", "chat", *map(str, arguments)],
            input=text,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )

    return call


def test_answers_alone_go_to_standard_output(piped: Callable[..., Any], sample_model: Path, run: Any) -> None:
    done = piped(f"{ASK}\n\n/nonsense\n".encode(), "--model", sample_model, "--max-tokens", "12")
    assert done.returncode == 0
    alone = run("generate", "--model", sample_model, "--prompt", ASK, "--max-tokens", "12")
    assert done.stdout.decode() == alone.stdout
    assert b"no command /nonsense; /help lists them\n" in done.stderr


def test_hostile_text_never_reaches_the_terminal_raw(piped: Callable[..., Any], sample_model: Path) -> None:
    attack = "\x1b]52;c;eA==\x07\x9b31m\u202e"
    lines = f"/\x1b[2J{attack}\n/save {attack}/x\n/system {attack}\n{attack}\n"
    done = piped(lines.encode(), "--model", sample_model, "--max-tokens", "4")
    assert done.returncode == 0
    assert not set((done.stdout + done.stderr).decode()) & set("\x1b\x07\x9b\u202e")


def test_a_line_that_is_not_utf8_is_refused_with_its_number(
    piped: Callable[..., Any], sample_model: Path
) -> None:
    done = piped(b"/help\n\xff\n", "--model", sample_model)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].endswith("standard input, line 2: is not valid UTF-8")


def test_a_conversation_goes_on_in_the_kept_cache_as_it_would_from_the_start(
    talk: Callable[..., Talk], loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = talk()
    assert kept.take(ASK)
    assert kept._context.reused == 0
    assert kept.take("And tomorrow?")
    assert kept._context.reused > 10
    again = talk()
    again._messages = list(kept._messages[:-1])
    again._answer()
    assert again._context.reused == 0
    assert again._messages == kept._messages
    assert roles(kept) == ["user", "assistant"] * 2
    capsys.readouterr()


def test_the_commands_change_the_conversation(
    talk: Callable[..., Talk], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = talk(system="Be brief.")
    chat.take(ASK)
    assert roles(chat) == ["system", "user", "assistant"]
    first = chat._messages[-1].content
    chat.take("/retry")
    assert chat._messages[-1].content == first
    chat.take("/base")
    assert roles(chat) == ["system", "user", "assistant"]
    chat.take(f"/save {tmp_path}/talk.jsonl")
    saved = json.loads((tmp_path / "talk.jsonl").read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    chat.take(f"/save {tmp_path}/talk.jsonl")
    assert "cannot be written (File exists)" in capsys.readouterr().err
    chat.take("/tool 21 degrees")
    assert roles(chat) == ["system", "user", "assistant", "tool", "assistant"]
    chat.take("/undo")
    assert roles(chat) == ["system", "user", "assistant"]
    chat.take("/undo")
    chat.take("/undo")
    assert roles(chat) == ["system"]
    assert "nothing to take back" in capsys.readouterr().err
    chat.take("/tool x")
    chat.take("/retry")
    chat.take("/base")
    chat.take("/save")
    said = capsys.readouterr().err
    for text in (
        "no answer of the model before it",
        "no answer to give anew",
        "no question has been",
        "name a new file",
    ):
        assert text in said
    assert roles(chat) == ["system"]
    chat.take("/system Other.")
    assert [message.content for message in chat._messages] == ["Other."]
    chat.take("/reset")
    assert [message.content for message in chat._messages] == ["Other."]
    assert not chat.take("/exit")


def test_a_conversation_longer_than_the_window_is_refused_with_its_counts(
    talk: Callable[..., Talk], loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = talk()
    chat.take("word " * loaded.window)
    assert roles(chat) == []
    assert (
        f"tokens, but the model takes {loaded.window}; /undo or /reset makes room" in capsys.readouterr().err
    )


def test_an_interrupted_answer_keeps_what_was_said(
    talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = talk()
    append = type(chat._context).append
    calls = []

    def interrupted(self: Any, token: int) -> Any:
        calls.append(token)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return append(self, token)

    monkeypatch.setattr(type(chat._context), "append", interrupted)
    assert chat.take(ASK)
    out, err = capsys.readouterr()
    assert "(stopped)" in err and out.strip()
    assert roles(chat) == ["user", "assistant"]
    assert chat.take("More?")
    assert roles(chat) == ["user", "assistant"] * 2


def test_on_a_terminal_control_c_ends_the_answer_and_control_d_the_program(
    sample_model: Path, environment: dict[str, str], terminal: Callable[..., Any]
) -> None:
    line = [sys.executable, "-m", "nf4tui", "chat", "--model", str(sample_model), "--max-tokens", "400"]
    with terminal(line, **{**environment, "TERM": "xterm"}) as screen:
        screen.wait_for("> ")
        time.sleep(
            0.3
        )  # Python hears of a signal that comes just before it waits for a key with that key only
        screen.press("\x03")  # at the prompt: a new line
        screen.read_until(lambda output: output.count(b"> ") == 2)
        for _ in range(3):
            screen.output = b""
            screen.press(f"{ASK}\r")
            screen.read_until(lambda output: len(output.partition(b"Paris?")[2].strip()) > 3)
            screen.press("\x03")
            screen.read_until(lambda output: output.partition(b"Paris?")[2].endswith(b"> "))
        screen.press("\x04")
        assert screen.finish() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--compare",), "--compare: needs --adapter"),
        (("--max-tokens", "0"), "--max-tokens 0"),
        (("--repetition-penalty", "0"), "--repetition-penalty 0.0"),
        (("--stop", ""), "--stop: is empty"),
        (("--tools", "gone.json"), "--tools gone.json: cannot be read"),
        (("--adapter", "gone"), "gone: no adapter_config.json"),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    piped: Callable[..., Any], sample_model: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = piped(b"Hi\n", "--model", sample_model, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode() and done.stderr.count(b"\n") == 1


def test_tools_are_offered_to_the_model(
    talk: Callable[..., Talk], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nf4tui.inference.conversation_file import read_tools

    path = tmp_path / "tools.json"
    path.write_text('[{"type": "function", "function": {"name": "get_weather"}}]')
    with_tools, without = talk(tools=read_tools(str(path))), talk()
    for chat in (with_tools, without):
        chat.take(ASK)
    assert len(with_tools._context._held) > len(without._context._held) + 20
    capsys.readouterr()
