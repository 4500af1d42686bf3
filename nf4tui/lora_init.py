"""LoRA's initial adapters, as PEFT makes them: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0.

(kaiming_uniform with a = sqrt(5) is that interval.) A tensor is a function of the seed and its name.
"""

import math

import numpy as np

from nf4tui.engine import Tensors
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import tensor_shapes
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.philox import Purpose, random_words


def initial_adapters(config: Qwen2Config, lora: LoraConfig, seed: int) -> Tensors:
    """Every adapter tensor, float32, by name: lora_A [R, in], lora_B [out, R]."""
    tensors: Tensors = {}
    for name, shape in tensor_shapes(config, lora).items():
        if name.endswith("lora_B"):
            tensors[name] = np.zeros(shape, dtype=np.float32)
            continue
        size = math.prod(shape)
        blocks = np.arange(-(-size // 4), dtype=np.uint64)
        words = random_words(seed, Purpose.INITIALISE, name, blocks).reshape(-1)[:size]
        uniform = (words.astype(np.float64) + 0.5) * 2.0**-32  # in (0, 1), never an end
        bound = 1 / math.sqrt(shape[1])
        tensors[name] = ((2 * uniform - 1) * bound).astype(np.float32).reshape(shape)
    return tensors
