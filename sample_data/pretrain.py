"""Pre-trains the sample model from random weights and writes model/ (the one script here that needs torch).

    python sample_data/pretrain.py --out sample_data/model      # minutes on a GPU, a day on a CPU

Plain PyTorch: Qwen2 as published, next-token loss over all tokens of make_corpus.py's documents, packed
into windows with a mask between documents. In the last quarter the projections are NF4-quantised in the
forward pass (straight-through gradients), since a small matrix feels the quantisation that training
with nf4tui puts it through.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make_corpus import documents
from tokenizers import Tokenizer
from torch import Tensor, nn

from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.random_checkpoint import write_tensors
from nf4tui.reference.nf4 import CODE, THRESHOLDS

WINDOW, EPS, THETA = 512, 1e-6, 10000.0
_HERE = Path(__file__).resolve().parent


def quantised(weight: Tensor) -> Tensor:
    """The NF4 value of each weight, with the gradient of the weight itself."""
    blocks = weight.detach().reshape(-1, 64)
    absmax = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    code = torch.bucketize(blocks / absmax, torch.from_numpy(THRESHOLDS).to(weight.device))
    value = torch.from_numpy(CODE).to(weight.device)[code] * absmax
    return weight + (value.reshape(weight.shape) - weight).detach()


class Linear(nn.Linear):
    """A projection that can be seen through NF4."""

    through_nf4 = False

    def forward(self, x: Tensor) -> Tensor:
        weight = quantised(self.weight) if self.through_nf4 else self.weight
        return F.linear(x, weight, self.bias)


class Layer(nn.Module):
    """One decoder layer; attribute names are Hugging Face's."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        kv = config.num_key_value_heads * config.head_dim
        self.heads, self.d = config.num_attention_heads, config.head_dim
        self.input_layernorm = nn.RMSNorm(width, EPS)
        self.post_attention_layernorm = nn.RMSNorm(width, EPS)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": Linear(width, width),
                "k_proj": Linear(width, kv),
                "v_proj": Linear(width, kv),
                "o_proj": Linear(width, width, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": Linear(width, inner, bias=False),
                "up_proj": Linear(width, inner, bias=False),
                "down_proj": Linear(inner, width, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        n, part = self.input_layernorm(x), self.self_attn

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, length, -1, self.d).transpose(1, 2)

        def turn(y: Tensor) -> Tensor:
            low, high = y.chunk(2, dim=-1)
            return y * cos + torch.cat([-high, low], dim=-1) * sin

        q, k, v = turn(heads(part["q_proj"](n))), turn(heads(part["k_proj"](n))), heads(part["v_proj"](n))
        group = self.heads // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + part["o_proj"](context.transpose(1, 2).reshape(rows, length, width))
        m, part = self.post_attention_layernorm(x), self.mlp
        return x + part["down_proj"](F.silu(part["gate_proj"](m)) * part["up_proj"](m))


class Model(nn.Module):
    """Qwen2 with a tied head."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, EPS)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 1 / math.sqrt(config.hidden_size)
                if "o_proj" in name or "down_proj" in name:
                    scale /= math.sqrt(2 * config.num_hidden_layers)
                nn.init.normal_(parameter, std=scale * 0.5)
            elif "bias" in name:
                nn.init.zeros_(parameter)
        frequency = THETA ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
        angle = torch.outer(torch.arange(WINDOW, dtype=torch.float64), frequency)
        angle = torch.cat([angle, angle], dim=-1)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids: Tensor, document: Tensor) -> Tensor:
        """ids, document [B, T] -> mean next-token loss within documents."""
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        mask = (document[:, :, None] == document[:, None, :]) & causal
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos.to(x.dtype), self.sin.to(x.dtype), mask[:, None])
        logits = F.linear(self.norm(x), self.embed_tokens.weight)[:, :-1].float()
        targets = ids[:, 1:].masked_fill(document[:, 1:] != document[:, :-1], -100)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-100)


def encode(job: tuple[int, int]) -> list[list[int]]:
    """`count` documents of the stream `seed` as token ids."""
    seed, count = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(_HERE / "model" / "tokenizer.json"))
    return [encoding.ids for encoding in tokenizer.encode_batch(list(islice(documents(seed), count)))]


def windows(count: int) -> tuple[Tensor, Tensor]:
    """About `count` documents packed whole into windows: ids and document numbers, [rows, WINDOW]."""
    jobs = [(1000 + number, 2000) for number in range(count // 2000)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        encoded = [ids for part in pool.map(encode, jobs) for ids in part if len(ids) <= WINDOW]
    ids_rows, document_rows, ids, numbers = [], [], [], []
    for document in encoded:
        if len(ids) + len(document) > WINDOW:
            missing = WINDOW - len(ids)
            ids_rows.append(ids + [0] * missing)
            document_rows.append(numbers + list(range(1000, 1000 + missing)))  # each pad is its own document
            ids, numbers = [], []
        numbers += [len(numbers)] * len(document)
        ids += document
    return torch.tensor(np.array(ids_rows, np.int16)).int(), torch.tensor(
        np.array(document_rows, np.int16)
    ).int()


def train(config: Qwen2Config, steps: int, batch: int, peak: float, count: int, seed: int) -> Model:
    """Trains with AdamW, warm-up and cosine decay."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    started = time.time()
    ids, document = (part.to(device) for part in windows(count))
    print(f"{len(ids)} windows after {time.time() - started:.0f} s", flush=True)
    model = Model(config).to(device)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=device == "cuda")
    for step in range(steps):
        if step == steps * 3 // 4:
            Linear.through_nf4 = True
        warm, left = min(1.0, (step + 1) / 200), step / steps
        for group in optimizer.param_groups:
            group["lr"] = peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * left)))
        rows = torch.randint(len(ids), (batch,), device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(ids[rows], document[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 250 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)
    return model


def save(model: Model, config: Qwen2Config, folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors (bfloat16)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": parameter.detach().to(torch.bfloat16).cpu().view(torch.uint16).numpy()
        for name, parameter in model.named_parameters()
    }
    write_tensors(folder / "model.safetensors", tensors)
    tokenizer = Tokenizer.from_file(str(_HERE / "model" / "tokenizer.json"))
    end, stop = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    raw = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": stop,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": config.num_hidden_layers,
        "model_type": "qwen2",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }
    generation = {"bos_token_id": end, "pad_token_id": end, "eos_token_id": [stop, end], "do_sample": False}
    for name, value in (("config", raw), ("generation_config", generation)):
        text = json.dumps(value, indent=2, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = Qwen2Config(
        vocab_size=1536,
        hidden_size=arguments.hidden,
        intermediate_size=3 * arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 32,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_theta=THETA,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
    )
    model = train(config, arguments.steps, arguments.batch, arguments.lr, arguments.documents, arguments.seed)
    save(model, config, arguments.out)


if __name__ == "__main__":
    main()
