from collections.abc import Callable

import numpy as np

from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.weights import ModelWeights

LORA = LoraConfig(rank=16, targets=("q_proj", "down_proj"))


def test_a_is_uniform_within_one_over_the_root_of_its_inputs_and_b_is_zero(
    make_weights: Callable[..., ModelWeights],
) -> None:
    config = make_weights(heads=4, kv_heads=4, head_dim=16).config
    tensors = initial_adapters(config, LORA, seed=0)
    assert list(tensors) == list(LORA.tensor_names(2))
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        if name.endswith("lora_B"):
            assert (tensor == 0).all()
            continue
        bound = tensor.shape[1] ** -0.5
        assert tensor.shape[0] == 16 and np.abs(tensor).max() <= bound
        # 720 or more samples: mean and spread of a uniform within four standard errors.
        assert abs(tensor.mean()) < 4 * bound / np.sqrt(3 * tensor.size)
        assert abs(tensor.std() * np.sqrt(3) / bound - 1) < 0.1


def test_a_tensor_is_a_function_of_the_seed_and_its_name(make_weights: Callable[..., ModelWeights]) -> None:
    config = make_weights().config
    tensors = initial_adapters(config, LORA, seed=3)
    again = initial_adapters(config, LoraConfig(rank=16, targets=("down_proj",)), seed=3)
    name = "layers.1.mlp.down_proj.lora_A"
    np.testing.assert_array_equal(again[name], tensors[name])
    assert (initial_adapters(config, LORA, seed=4)[name] != tensors[name]).all()
    assert (tensors["layers.0.mlp.down_proj.lora_A"] != tensors[name]).all()
