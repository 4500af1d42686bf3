"""Records adapters of uneven shape as PEFT saves them, with its float32 logits and gradients on the CPU.

    python benchmarks/peers/make_adapters.py tests/golden
    python benchmarks/peers/make_adapters.py tests/golden --reread FOLDER

The base is tests/golden/tied/base, its projections through NF4 and back. PEFT saves patterns sorted, which can
change the one that matches first: what is recorded is what PEFT computes once it has read its own files (with
ranks that no longer fit it cannot). The second form reads FOLDER/<name>, adapters that nf4tui wrote anew, with
PEFT and prints how far its logits are from the recorded ones.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from make_adapter_modules import SEVEN, UNSLOTH
from make_case import quantise_in_place
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

LENGTH = 20
# r and lora_alpha are small, so that each case stays below 100 KB.
CASES: dict[str, dict[str, Any]] = {
    "rank-and-alpha-pattern": {
        "target_modules": SEVEN,
        "rank_pattern": {"(down|q)_proj": 4, r"layers\.1\.mlp\.\w+": 1, "o_proj": 3},
        "alpha_pattern": {"layers.0.self_attn.v_proj": 10, "mlp.up_proj": 0.5, r".*\.1\..*_proj": 7},
    },
    "rslora-rank-pattern": {
        "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj"],
        "rank_pattern": {"model.layers.0.self_attn.q_proj": 5, "gate_proj": 3},
        "alpha_pattern": {"gate_proj": 9},
        "use_rslora": True,
    },
    "regex-targets": {
        "target_modules": r".*\.0\.(self_attn\.[qv]|mlp\.down)_proj|model\.layers\.1\.mlp\.(?!down)\w+_proj",
        "rank_pattern": {"(gate|up)_proj": 1},
    },
    "unsloth-regex": {"target_modules": UNSLOTH, "lora_dropout": 0, "rank_pattern": {"down_proj": 1}},
    "layers-to-transform": {
        "target_modules": ["k_proj", "o_proj", "up_proj", "model.layers.0.mlp.down_proj"],
        "layers_to_transform": [1],
        "layers_pattern": "layers",
        "alpha_pattern": {"k_proj": 24},
    },
    "exclude-modules": {
        "target_modules": "all-linear",
        "exclude_modules": ["v_proj", "layers.1.mlp.gate_proj"],
        "rank_pattern": {"layers.1.self_attn.o_proj": 3},
        "use_rslora": True,
    },
}


def base(golden: Path) -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM.from_pretrained(
        golden / "tied" / "base", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    quantise_in_place(model)
    return model


def record(golden: Path, name: str, seed: int) -> None:
    """Writes tests/golden/adapters/<name>: the adapter's two files and golden.safetensors."""
    torch.manual_seed(seed)
    lora = LoraConfig(
        **{"task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 6, "lora_dropout": 0.0} | CASES[name]
    )
    made = get_peft_model(base(golden), lora)
    for key, p in made.named_parameters():
        if "lora_B" in key:
            p.data.normal_(std=0.3 / math.sqrt(p.shape[1]))
    made.peft_config["default"].base_model_name_or_path = "tied"  # not where it lay on this machine
    folder = golden / "adapters" / name
    made.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    adapted = PeftModel.from_pretrained(base(golden), str(folder), is_trainable=True)
    ids = torch.randint(0, adapted.config.vocab_size, (1, LENGTH))
    out = adapted(input_ids=ids, labels=ids)
    out.loss.backward()
    recorded = {"input_ids": ids, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
    for key, p in adapted.named_parameters():
        if p.requires_grad:
            recorded[f"grad.{key.replace('.default.', '.')}"] = p.grad
    for key, module in adapted.named_modules():
        if hasattr(module, "lora_A"):
            scaling = torch.tensor([module.r["default"], module.scaling["default"]], dtype=torch.float64)
            recorded[f"rank_scaling.{key.removeprefix('base_model.model.')}"] = scaling
    save_file({key: tensor.contiguous() for key, tensor in recorded.items()}, folder / "golden.safetensors")


def reread(golden: Path, name: str, folder: Path) -> float:
    """relL2 between the recorded logits and those of the adapter in `folder`, read by PEFT."""
    recorded = load_file(golden / "adapters" / name / "golden.safetensors")
    with torch.no_grad():
        logits = PeftModel.from_pretrained(base(golden), str(folder))(input_ids=recorded["input_ids"]).logits
    return float((logits - recorded["logits"]).norm() / recorded["logits"].norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("golden", type=Path)
    parser.add_argument("--reread", type=Path)
    arguments = parser.parse_args()
    for seed, name in enumerate(CASES):
        if arguments.reread:
            print(json.dumps({name: reread(arguments.golden, name, arguments.reread / name)}))
        else:
            record(arguments.golden, name, seed)


if __name__ == "__main__":
    main()
