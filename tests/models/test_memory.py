"""Loading grows memory by the quantised model and one tensor, not by the checkpoint."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_random_checkpoint

# VmHWM and not ru_maxrss, which a child inherits from the process that started it.
PROGRAM = """
import json, sys
from pathlib import Path
from nf4tui.models.load import load_model

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

before = peak()
weights = load_model(Path(sys.argv[1]))
held = weights.embedding.nbytes + weights.final_norm.nbytes
for layer in weights.layers:
    held += layer.attn_norm.nbytes + layer.mlp_norm.nbytes
    held += sum(bias.nbytes for bias in layer.biases.values())
    held += sum(projection.nbytes for projection in layer.projections.values())
print(json.dumps({"growth": peak() - before, "held": held}))
"""


def test_peak_memory_is_the_quantised_model_and_one_tensor(
    tmp_path: Path, make_config: Callable[..., Qwen2Config]
) -> None:
    config = make_config(
        vocab_size=8000, hidden_size=512, intermediate_size=1536, num_hidden_layers=9, num_attention_heads=8
    )
    write_random_checkpoint(tmp_path / "model", config)
    stored = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert stored > 55e6
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    largest = config.vocab_size * config.hidden_size * 4  # the embedding in float32
    assert found["held"] < stored / 2
    bound = 1.3 * found["held"] + largest
    assert bound < stored  # a loader that held the whole checkpoint would not pass
    assert found["growth"] < bound
