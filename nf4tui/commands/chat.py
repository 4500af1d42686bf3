"""`nf4tui chat`: a conversation with a model, on a terminal or line by line from standard input.

Answers go to standard output, everything else to standard error. The key/value cache is kept from turn to
turn (inference/context.py). Ctrl-C ends an answer, not the program.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nf4tui.commands.generate import check, check_text, show
from nf4tui.commands.interrupts import Interrupts
from nf4tui.errors import InputError

if TYPE_CHECKING:
    from nf4tui.data.conversation import Message
    from nf4tui.inference.load import Loaded
    from nf4tui.inference.sampling import Sampling

HELP = """\
/reset          begin anew
/system TEXT    set the system prompt and begin anew
/tool TEXT      answer the model's tool call
/undo           take the last question and answer back
/retry          answer the last question anew
/base           the last question's answer by the base model alone
/save FILE      write the conversation as one line of JSONL to a new file
/exit           leave, as Ctrl-D does; Ctrl-C ends an answer"""


def run(
    *,
    model: str | None = None,
    adapter: str | None = None,
    system: str | None = None,
    tools: str | None = None,
    device: str = "auto",
    max_tokens: int = 1024,
    sampling: "Sampling",
    stop: Sequence[str] = (),
    compare: bool = False,
) -> int:
    """Answers until /exit or the end of the input. compare: the base model's answer first, each time.
    Raises Nf4tuiError."""
    from nf4tui.commands.choose_model import choose_model
    from nf4tui.inference.conversation_file import read_tools
    from nf4tui.inference.load import load

    check(sampling, max_tokens, stop)
    check_text("--system", system or "")
    if compare and adapter is None:
        raise InputError("--compare: needs --adapter, whose answer stands beside the base model's")
    offered = read_tools(tools) if tools is not None else ()
    loaded = load(choose_model(model, ()), adapter, device)
    talk = Talk(
        loaded,
        tools=offered,
        system=system,
        max_tokens=max_tokens,
        sampling=sampling,
        stop=stop,
        compare=compare,
    )
    if sys.stdin.isatty() and sys.stdout.isatty():
        talk.interrupts.install()
        _say("/help lists the commands")
        _talk_on_terminal(talk)
        return 0
    for line in _piped():
        if not talk.take(line):
            break
    return 0


class Talk:
    """The conversation so far, and the caches of both models."""

    def __init__(
        self,
        loaded: "Loaded",
        *,
        tools: tuple[dict[str, Any], ...],
        system: str | None,
        max_tokens: int,
        sampling: "Sampling",
        stop: Sequence[str],
        compare: bool,
    ) -> None:
        from nf4tui.inference.context import Context

        self._loaded = loaded
        self._tools = tools
        self._max_tokens, self._sampling, self._stop, self._compare = max_tokens, sampling, stop, compare
        self._context = Context(loaded.engine, loaded.window)
        self._base = Context(loaded.base, loaded.window)
        self._messages: list[Message] = []
        self.interrupts = Interrupts()
        self._begin(system)

    def take(self, line: str) -> bool:
        """Does what a line asks for; False to leave."""
        text = line.strip()
        if not text:
            return True
        if not text.startswith("/"):
            self._ask("user", line)
            return True
        name, _, rest = text.partition(" ")
        if name in {"/exit", "/quit"}:
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: _say(HELP),
            "/reset": lambda _: self._begin(self._system()),
            "/system": self._begin,
            "/tool": lambda rest: self._ask("tool", rest),
            "/undo": lambda _: self._undo(),
            "/retry": lambda _: self._retry(),
            "/base": lambda _: self._answer_by_base(),
            "/save": self._save,
        }
        if name in commands:
            commands[name](rest.strip())
        else:
            _say(f"no command {name}; /help lists them")
        return True

    def _begin(self, system: str | None) -> None:
        from nf4tui.data.conversation import Message

        self._messages = [] if system is None else [Message("system", system)]

    def _system(self) -> str | None:
        first = self._messages[0] if self._messages else None
        return first.content if first and first.role == "system" else None

    def _ask(self, role: str, text: str) -> None:
        """Adds a message and its answer, or neither."""
        from nf4tui.data.conversation import Message

        if role == "tool" and not (self._messages and self._messages[-1].role == "assistant"):
            _say("/tool: there is no answer of the model before it")
            return
        self._messages.append(Message(role, text))
        self._answer()

    def _answer(self) -> None:
        """The answer to the last message, which is taken back where there is none."""
        from nf4tui.data.conversation import Message

        if self._compare:
            sys.stdout.write("base:\n")
            if self._show(self._base) is None:
                self._messages.pop()
                return
            sys.stdout.write("adapter:\n")
        text = self._show(self._context)
        if text is None or not text.strip():
            self._messages.pop()
        else:
            self._messages.append(Message("assistant", text))

    def _show(self, context: Any) -> str | None:
        """Writes an answer as it comes; what there is of it, None where the model cannot be asked."""
        from nf4tui.data.chat import prompt_ids
        from nf4tui.data.conversation import Conversation
        from nf4tui.inference.answer import Answer

        conversation = Conversation(tuple(self._messages), self._tools)
        try:
            ids = prompt_ids(conversation, self._loaded.tokenizer)
        except InputError as error:
            _say(str(error))
            return None
        room = self._loaded.window - len(ids)
        if room < 1:
            _say(
                f"the conversation has {len(ids)} tokens, but the model takes {self._loaded.window};"
                " /undo or /reset makes room"
            )
            return None
        answer = Answer(
            context,
            ids,
            self._loaded.tokenizer,
            max_tokens=min(self._max_tokens, room),
            sampling=self._sampling,
            stop=self._stop,
        )
        try:
            with self.interrupts.allowed():
                show(answer)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            sys.stdout.flush()
            _say("(stopped)")
        return answer.text

    def _undo(self) -> None:
        kept = len(self._messages)
        while kept and self._messages[kept - 1].role == "assistant":
            kept -= 1
        if not kept or self._messages[kept - 1].role == "system":
            _say("nothing to take back")
            return
        del self._messages[kept - 1 :]

    def _retry(self) -> None:
        if not self._messages or self._messages[-1].role != "assistant":
            _say("no answer to give anew")
            return
        last = self._messages.pop()
        before = len(self._messages)
        self._answer()
        if len(self._messages) <= before:
            self._messages += [last]

    def _answer_by_base(self) -> None:
        if not self._messages or self._messages[-1].role != "assistant":
            _say("no question has been answered yet")
            return
        last = self._messages.pop()
        try:
            self._show(self._base)
        finally:
            self._messages.append(last)

    def _save(self, path: str) -> None:
        if not path:
            _say("/save: name a new file")
            return
        messages = [{"role": message.role, "content": message.content} for message in self._messages]
        record: dict[str, Any] = {"messages": messages}
        if self._tools:
            record["tools"] = list(self._tools)
        try:
            with Path(path).expanduser().open("x", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except (OSError, ValueError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _say(f"{path}: cannot be written ({reason})")
            return
        _say(f"saved to {path}")


def _say(text: str) -> None:
    """To standard error: what is not the model's."""
    from nf4tui.sanitize import visible

    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def _talk_on_terminal(talk: Talk) -> None:
    """Until /exit or Ctrl-D. Lines have editing and history where the platform has readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - its import gives input() both
    while True:
        try:
            with talk.interrupts.allowed():
                line = input("> ")
        except EOFError:
            sys.stderr.write("\n")
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            continue
        except UnicodeDecodeError:
            line = "\udcff"
        if any("\ud800" <= character <= "\udfff" for character in line):
            _say("the line is not valid UTF-8")
        elif not talk.take(line):
            return


def _piped() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"standard input, line {number}: is not valid UTF-8") from None
