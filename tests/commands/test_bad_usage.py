"""Bad usage and bad input: one line that says what is wrong, exit 2, no traceback, nothing written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

# (arguments, what the line must say). MODEL, DATA and the other capitals are files of `place` below.
BAD = [
    ("trian", 'Did you mean "train"'),
    ("plan --model MODEL", "Unknown command"),
    ("train DATA --rnk 3", "Did you mean --rank"),
    ("train DATA --rank", "--rank requires an argument"),
    ("train DATA --rank abc", "--rank 'abc': must be a whole number"),
    ("train DATA --rank 1.5", "--rank '1.5': must be a whole number"),
    ("train DATA --lr fast", "--lr 'fast': must be a number, or 'auto'"),
    ("train DATA --model MODEL --rank 0", "--rank 0: must be at least 1"),
    ("train DATA --model MODEL --rank -4", "--rank -4: must be at least 1"),
    ("train DATA --model MODEL --alpha 0", "--alpha 0.0: must be a positive number"),
    ("train DATA --model MODEL --lr -1", "--lr -1.0: must be a positive number"),
    ("train DATA --model MODEL --lr nan", "--lr nan: must be a positive number"),
    ("train DATA --model MODEL --dropout 1", "--dropout 1.0: must be at least 0 and below 1"),
    ("train DATA --model MODEL --warmup -1", "--warmup -1.0: must be"),
    ("train DATA --model MODEL --clip inf", "--clip inf: must be"),
    ("train DATA --model MODEL --weight-decay nan", "--weight-decay nan: must be"),
    ("train DATA --model MODEL --schedule step", "--schedule step: must be one of cosine"),
    ("train DATA --model MODEL --adapter ~nobody-here/x", "~nobody-here/x: Could not determine home"),
    ("eval DATA --model MODEL --adapter ~nobody-here/x", "~nobody-here/x: Could not determine home"),
    ("verify --case ~nobody-here/x", "~nobody-here/x: Could not determine home"),
    ("train DATA --model MODEL --targets q_proj,x", "--targets q_proj,x: must name some of"),
    ("train DATA --model MODEL --seed -1", "--seed -1: must be"),
    ("train DATA --model MODEL --parity maybe", "--parity maybe: must be one of"),
    ("train DATA --model MODEL --format csv", "--format csv: must be"),
    ("train DATA --model MODEL --overlong cut", "--overlong cut: must be one of"),
    ("train DATA --model MODEL --supervise first", "--supervise first: must be one of"),
    ("train DATA --model MODEL --max-seq-len 1", "--max-seq-len 1: must be"),
    ("train DATA --model MODEL --max-seq-len 99999", "--max-seq-len 99999: the model takes at most 2048"),
    ("train DATA --model MODEL --device tpu", "--device 'tpu': must be one of"),
    ("train DATA --model MODEL --batch-size 0", "--batch-size 0: must be at least 1"),
    ("train DATA --model MODEL --epochs 1 --steps 1", "--epochs and --steps: give one of them"),
    ("train DATA --model MODEL --eval-split 1", "--eval-split 1.0: must lie between 0 and 1"),
    ("train DATA --model MODEL --eval-every 5", "--eval-every 5: needs validation data"),
    ("train DATA --model MODEL --eval-data gone.jsonl", "gone.jsonl: no such file"),
    ("train DATA --model MODEL --adapter MODEL", "adapter_config.json"),
    ("train", "no data: name at least one JSONL file"),
    ("train DATA", "no model: name one with --model"),
    ("train gone.jsonl", "gone.jsonl: no such file; check the path"),
    ("train gone.jsonl --model MODEL", "gone.jsonl: no such file"),
    ("train gone*.jsonl --model MODEL", "gone*.jsonl: matches no file"),
    ("train MALFORMED --model MODEL", "malformed.jsonl:2:15: "),
    ("train FOLDER --model MODEL", "folder"),
    ("train DATA --model gone/model", "gone/model: not a directory and not in the local hub cache"),
    ("train DATA --model ./gone", "'./gone': no such directory"),
    ("train DATA --model FOLDER", "folder"),
    ("train DATA --model DATA", "data.jsonl: a file; --model takes"),
    ("train DATA --model MODEL --out FOLDER", "folder: is not empty (it holds foreign.txt)"),
    ("train DATA --model MODEL --out DATA", "data.jsonl: is in the way (not a folder)"),
    ("train DATA --model MODEL --out OLD", "old: a run exists here"),
    ("train DATA --resume --model MODEL", "--resume: no run of "),
    ("train DATA --config gone.toml", "gone.toml: cannot be read"),
    ("train DATA --config TOML", "bad.toml: there is no setting 'rnk'; did you mean 'rank'?"),
    ("data", "no data: name at least one JSONL file"),
    ("data gone.jsonl", "gone.jsonl: no such file"),
    ("data MALFORMED", "malformed.jsonl:2:15: "),
    ("eval", "no data"),
    ("eval DATA", "no model: name one with --model"),
    ("eval DATA --model MODEL --max-samples 0", "--max-samples 0: must be at least 1"),
    ("eval DATA --model MODEL --max-seq-len 0", "--max-seq-len 0: must be at least 2"),
    ("eval DATA --model MODEL --max-seq-len 4096", "the model takes at most 2048"),
    ("eval DATA --model MODEL --adapter gone", "gone"),
    ("generate --model MODEL", "give one of --prompt TEXT and --messages FILE"),
    ("generate --model MODEL --prompt a --messages DATA", "give one of --prompt TEXT and --messages FILE"),
    ("generate --model MODEL --messages DATA --system b", "--system goes with --prompt"),
    ("generate --model MODEL --prompt a --max-tokens 0", "--max-tokens 0: must be at least 1"),
    ("generate --model MODEL --prompt a --temperature -1", "--temperature -1.0: must be"),
    ("generate --model MODEL --prompt a --top-p 0", "--top-p 0.0: must be"),
    ("generate --model MODEL --prompt a --top-k x", "--top-k 'x': must be a whole number"),
    ("generate --prompt a", "no model: name one with --model"),
    ("watch", "requires an argument"),
    ("watch gone", "gone: is not a run directory"),
    ("watch FOLDER", "folder: is not a run directory"),
    ("verify --case gone", "gone"),
    ("doctor --fix", "Unknown option"),
]


@pytest.fixture
def place(tmp_path: Path, data: Path, sample_model: Path) -> dict[str, str]:
    """Files by the word that stands for them in BAD."""
    (tmp_path / "malformed.jsonl").write_text(data.read_text().splitlines()[0] + '\n{"messages": [,]}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "foreign.txt").write_text("mine")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.toml").write_text("")
    (tmp_path / "bad.toml").write_text("rnk = 3\n")
    names = {"MALFORMED": "malformed.jsonl", "FOLDER": "folder", "OLD": "old", "TOML": "bad.toml"}
    return {"MODEL": str(sample_model), "DATA": "data.jsonl", **names}


def everything(folder: Path) -> dict[str, bytes]:
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files | {str(path): b"" for path in folder.rglob("*") if path.is_dir()}


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[arguments for arguments, _ in BAD])
def test_it_is_refused_in_one_line(
    tmp_path: Path, run: Run, place: dict[str, str], arguments: str, message: str
) -> None:
    before = everything(tmp_path)
    found = run(*(place.get(word, word) for word in arguments.split()))
    assert found.returncode == 2, found
    assert found.stderr.startswith("nf4tui: error: ") and found.stderr.count("\n") == 1, found.stderr
    assert message in found.stderr
    if not arguments.startswith("data "):
        assert found.stdout == ""
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [
        "trian",
        "train",
        "train DATA --rank 0 --model MODEL",
        "train gone.jsonl --model MODEL",
        "eval gone.jsonl",
    ],
)
def test_with_json_the_error_is_one_event_too(run: Run, place: dict[str, str], arguments: str) -> None:
    found = run(*(place.get(word, word) for word in arguments.split()), "--json")
    assert found.returncode == 2
    (line,) = found.stdout.splitlines()
    event = json.loads(line)
    assert event["event"] == "error"
    assert found.stderr == f"nf4tui: error: {event['message']}\n"


def test_control_sequences_of_names_and_data_are_made_visible(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2J\u202ea.jsonl"
    path.write_text('{"messages": [{"role": "\\u001b]0;x\\u0007", "content": "a"}]}\n')
    for arguments in (["data", path], ["train", path, "--model", "\x1b[31m"], ["train", "--\x1b[1m"]):
        found = run(*arguments)
        assert found.returncode == 2
        assert not {"\x1b", "\u202e", "\x07"} & set(found.stdout + found.stderr)


def test_cuda_that_is_not_there_is_exit_3(run: Run, place: dict[str, str]) -> None:
    found = run("eval", place["DATA"], "--model", place["MODEL"], "--device", "cuda")
    assert (found.returncode, found.stderr.count("\n")) == (3, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_one_line(environment: dict[str, str], data: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nf4tui", "data", data]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert found.returncode == 3
    assert found.stderr.decode() == "nf4tui: error: standard output: No space left on device\n"


def test_a_reader_that_leaves_is_no_error(environment: dict[str, str], data: Path) -> None:
    command = [sys.executable, "-m", "nf4tui", "data", data]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
