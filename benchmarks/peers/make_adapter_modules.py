"""Records which modules PEFT adapts for an adapter_config.json, with which rank and scaling.

python benchmarks/peers/make_adapter_modules.py tests/models/peft_modules.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

LAYERS = 12
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# As Unsloth writes target_modules for text models.
UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
    r"(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj).*?)|"
    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\."
    r"(?:(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|down_proj)))"
)
CONFIGS: list[dict[str, Any]] = [
    {"target_modules": SEVEN},
    {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    {"target_modules": "all-linear"},
    {"target_modules": UNSLOTH},
    {"target_modules": ["self_attn.q_proj", "mlp.down_proj"]},
    {"target_modules": ["model.layers.3.self_attn.k_proj", "11.mlp.up_proj"]},
    {"target_modules": r".*\.(q_proj|down_proj)"},
    {"target_modules": r"model\.layers\.(1|10)\..*_proj"},
    {"target_modules": r".*[02468]\.self_attn\.o_proj"},
    {"target_modules": SEVEN, "exclude_modules": ["k_proj", "layers.2.mlp.up_proj"]},
    {"target_modules": SEVEN, "exclude_modules": r".*layers\.[0-8]\..*"},
    {"target_modules": "all-linear", "exclude_modules": r".*mlp.*"},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 11]},
    {"target_modules": SEVEN, "layers_to_transform": 7},
    {"target_modules": ["q_proj"], "layers_to_transform": [1, 2], "layers_pattern": "layers"},
    {"target_modules": ["v_proj"], "layers_to_transform": [1, 2], "layers_pattern": ["h", "layers"]},
    {"target_modules": ["v_proj"], "layers_to_transform": []},
    {"target_modules": ["v_proj", "model.layers.3.mlp.up_proj"], "layers_to_transform": [1]},
    {"target_modules": ["q_proj"], "layers_to_transform": [2, 5], "exclude_modules": ["5.self_attn.q_proj"]},
    {"target_modules": "All-Linear", "rank_pattern": {r".*\.\d\.mlp\.\w+": 3}},
    {"target_modules": SEVEN, "rank_pattern": {"q_proj": 2, "down_proj": 16}},
    {"target_modules": SEVEN, "alpha_pattern": {"mlp.up_proj": 64, "o_proj": 3}},
    {
        "target_modules": SEVEN,
        "rank_pattern": {"layers.1.self_attn.q_proj": 5},
        "alpha_pattern": {"q_proj": 7},
    },
    {"target_modules": SEVEN, "rank_pattern": {r"model\.layers\.[0-5]\..*": 4, "q_proj": 32}},
    {
        "target_modules": SEVEN,
        "rank_pattern": {"q_proj": 32, r"model\.layers\.[0-5]\..*": 4},
        "use_rslora": True,
    },
    {"target_modules": SEVEN, "rank_pattern": {r".*\.1\.mlp\.(gate|up)_proj": 9}, "use_rslora": True},
    {"target_modules": ["q_proj"], "rank_pattern": {"roj": 3, "1.self_attn.q_proj": 6}},
    {
        "target_modules": ["q_proj"],
        "rank_pattern": {"v_proj": 3},
        "alpha_pattern": {"^q_proj": 3, ".*q_proj": 5},
    },
]


def adapted(fields: dict[str, Any]) -> dict[str, list[float]]:
    """[rank, scaling] by module name, as PEFT makes them."""
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = get_peft_model(
        Qwen2ForCausalLM(config), LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=24, **fields)
    )
    return {
        name.removeprefix("base_model.model."): [module.r["default"], module.scaling["default"]]
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    recorded = [{"fields": fields, "modules": adapted(fields)} for fields in CONFIGS]
    lines = ",\n".join(json.dumps(item) for item in recorded)
    out.write_text(f'{{"layers": {LAYERS}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print([len(item["modules"]) for item in recorded])


if __name__ == "__main__":
    main()
