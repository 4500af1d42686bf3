"""Records an oracle case with torch, transformers, PEFT and bitsandbytes on the CPU, in float32.

    python benchmarks/peers/make_case.py gqa7 DIRECTORY

The only users of those libraries are this folder's scripts; the cases in tests/golden were made with it.
"""

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2Config, Qwen2ForCausalLM

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Recipe:
    """A case's shapes. scale: factor on the random matrices. k_bias: added to every key bias.

    bitsandbytes 0.50.2 dequantises wrongly on the CPU where a row is a multiple of 32 but not of 64 values
    (its CUDA kernels and its fallback do not), so no recipe has such a width."""

    vocab: int = 320
    hidden: int = 64
    inner: int = 192
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    tied: bool = True
    theta: float = 1e6
    eps: float = 1e-6
    rows: int = 2
    length: int = 24
    pad: tuple[int, ...] = (0, 5)
    rank: int = 4
    alpha: float = 8
    rslora: bool = False
    targets: tuple[str, ...] = PROJECTIONS
    scale: float = 4.0
    k_bias: float = 0.0
    dtype: str = "bfloat16"
    shard: str = "5GB"
    old_config: bool = False
    quantised: bool = False
    seed: int = 1


RECIPES = {
    "untied-gqa7-rslora": Recipe(
        vocab=331, hidden=56, inner=72, heads=7, kv_heads=1, tied=False, rslora=True, alpha=6,
        pad=(3, 11), length=19, scale=1.5, seed=2,
    ),
    "mha-old-config": Recipe(
        vocab=257, hidden=72, inner=104, heads=3, kv_heads=3, theta=1e4, old_config=True, rank=3, alpha=5,
        scale=2.0, seed=3,
    ),
    "qv-only-head128": Recipe(
        hidden=128, inner=64, heads=1, kv_heads=1, targets=("q_proj", "v_proj"), eps=1e-5, rank=8,
        alpha=16, scale=2.0, vocab=203, seed=4,
    ),
    "large-k-bias": Recipe(k_bias=4.0, scale=2.0, seed=5),
    "sharded-fp16": Recipe(dtype="float16", shard="60KB", tied=False, vocab=301, seed=6),
    "bnb": Recipe(vocab=101, hidden=192, inner=64, layers=1, heads=6, kv_heads=2, quantised=True, scale=2.0, seed=7),
    "one-row-odd": Recipe(rows=1, pad=(2,), length=33, vocab=77, hidden=40, inner=72, heads=4, kv_heads=1, seed=8),
}  # fmt: skip


def make(recipe: Recipe, folder: Path) -> None:
    """Writes the case into a new folder."""
    torch.manual_seed(recipe.seed)
    dtype = getattr(torch, recipe.dtype)
    model = Qwen2ForCausalLM(_config(recipe)).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.normal_(std=0.5)
                if "k_proj" in name and recipe.k_bias:
                    p.add_(recipe.k_bias * torch.sign(torch.randn_like(p)))
            else:
                p.mul_(recipe.scale)
            p.copy_(p.to(dtype).float())
    _save_base(model, recipe, folder / "base")
    golden = _batch(recipe)
    golden |= quantise_in_place(model)
    adapted = _adapted(model, recipe)
    adapted.save_pretrained(folder / "adapter")
    golden |= _forward_backward_step(adapted, golden)
    save_file({name: tensor.contiguous() for name, tensor in golden.items()}, folder / "golden.safetensors")
    if recipe.quantised:
        for name, double in (("bnb4", False), ("bnb4-dq", True)):
            _save_quantised(folder, name, double, golden)
    optimizer = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "clip": 1.0}
    (folder / "case.json").write_text(json.dumps(asdict(recipe) | {"optimizer": optimizer}, indent=1) + "\n")


def _config(recipe: Recipe) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=recipe.vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.theta},
        rms_norm_eps=recipe.eps,
        tie_word_embeddings=recipe.tied,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )


def _save_base(model: Qwen2ForCausalLM, recipe: Recipe, folder: Path) -> None:
    copy = Qwen2ForCausalLM(_config(recipe)).to(getattr(torch, recipe.dtype))
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(folder, max_shard_size=recipe.shard)
    if recipe.old_config:
        path = folder / "config.json"
        raw = json.loads(path.read_text())
        raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
        raw["torch_dtype"] = raw.pop("dtype")
        raw.pop("layer_types", None)
        path.write_text(json.dumps(raw, indent=2))


def _batch(recipe: Recipe) -> dict[str, torch.Tensor]:
    shape = (recipe.rows, recipe.length)
    ids, mask = torch.randint(0, recipe.vocab, shape), torch.ones(shape, dtype=torch.int64)
    for row, pad in enumerate(recipe.pad):
        mask[row, recipe.length - pad :] = 0
    labels = torch.where((mask == 1) & (torch.rand(shape) < 0.8), ids, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def quantise_in_place(model: Qwen2ForCausalLM) -> dict[str, torch.Tensor]:
    """Every projection through bitsandbytes' NF4 and back; returns the bytes."""
    recorded = {}
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in PROJECTIONS:
            packed, state = bnb.functional.quantize_4bit(module.weight.data, blocksize=64, quant_type="nf4")
            recorded[f"nf4.{name}.packed"] = packed.reshape(-1)
            recorded[f"nf4.{name}.absmax"] = state.absmax.float().reshape(-1)
            module.weight.data = bnb.functional.dequantize_4bit(packed, state).float()
    return recorded


def _adapted(model: Qwen2ForCausalLM, recipe: Recipe) -> torch.nn.Module:
    lora = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        use_rslora=recipe.rslora,
        target_modules=list(recipe.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, lora)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            p.data.normal_(std=0.3 / math.sqrt(recipe.rank))
    return adapted


def _forward_backward_step(
    adapted: torch.nn.Module, golden: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    inputs = {name: golden[name] for name in ("input_ids", "attention_mask", "labels")}
    out = adapted(**inputs, output_hidden_states=True)
    out.loss.backward()
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    result = {f"hidden.{index}": hidden.detach() for index, hidden in enumerate(out.hidden_states)}
    result |= {"logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
    result |= {f"grad.{name}": p.grad.clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    result["grad_norm"] = torch.nn.utils.clip_grad_norm_(trained.values(), 1.0).reshape(1)
    optimizer.step()
    result |= {f"after_step.{name}": p.detach().clone() for name, p in trained.items()}
    with torch.no_grad():
        result["loss_after_step"] = adapted(**inputs).loss.reshape(1)
    return result


def _save_quantised(folder: Path, name: str, double: bool, golden: dict[str, torch.Tensor]) -> None:
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_use_double_quant=double,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder / "base", quantization_config=quantisation, dtype=torch.float32, attn_implementation="eager"
    )
    model.save_pretrained(folder / name)
    # In evaluation mode bitsandbytes computes in bfloat16 on a CPU that can; there is no dropout to fear.
    model.train()
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"], attention_mask=golden["attention_mask"]).logits
    save_file({"logits": logits.float().contiguous()}, folder / name / "golden_logits.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True)
    make(RECIPES[arguments.recipe], arguments.directory)
