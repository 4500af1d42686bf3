"""Merging grows memory by the largest tensor and little more, not by the model that is written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint

PROGRAM = """
import json, sys
from pathlib import Path
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.load import load_model
from nf4tui.models.merge import Merge, write_merged
from nf4tui.models.shards import open_checkpoint

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

base, out, quantise = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True"
weights = load_model(base)
lora = LoraConfig(rank=4)
adapters = initial_adapters(weights.config, lora, 0)
before = peak()
write_merged(out, Merge(open_checkpoint(base), weights, lora, adapters), quantise=quantise)
print(json.dumps({"growth": peak() - before}))
"""


@pytest.mark.parametrize("quantise", [False, True])
def test_peak_memory_is_one_tensor(
    tmp_path: Path, make_config: Callable[..., Qwen2Config], quantise: bool
) -> None:
    config = make_config(
        vocab_size=8000, hidden_size=512, intermediate_size=1536, num_hidden_layers=9, num_attention_heads=8
    )
    write_random_checkpoint(tmp_path / "model", config)
    (tmp_path / "out").mkdir()
    arguments = [str(tmp_path / "model"), str(tmp_path / "out"), str(quantise)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    written = (tmp_path / "out/model.safetensors").stat().st_size
    largest = config.vocab_size * config.hidden_size * 4
    assert json.loads(done.stdout)["growth"] < 1.2 * largest < written
