from collections.abc import Callable

import pytest

from nf4tui.engines import choose_device, create_engine
from nf4tui.errors import CannotRunError, InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.weights import ModelWeights


def test_auto_and_cpu_run_on_the_cpu() -> None:
    assert choose_device("auto") == choose_device("cpu") == "cpu"


def test_cuda_cannot_run_yet_and_an_unknown_name_is_refused(
    make_weights: Callable[..., ModelWeights],
) -> None:
    with pytest.raises(CannotRunError, match="no CUDA engine"):
        choose_device("cuda")
    with pytest.raises(InputError, match="'gpu'"):
        choose_device("gpu")
    with pytest.raises(CannotRunError):
        create_engine("cuda", make_weights(), LoraConfig(), seed=0)


def test_an_engine_starts_from_the_seed_or_from_given_adapters(
    make_weights: Callable[..., ModelWeights],
) -> None:
    weights, lora = make_weights(), LoraConfig(rank=2)
    fresh = create_engine("auto", weights, lora, seed=5)
    expected = initial_adapters(weights.config, lora, 5)
    assert fresh.device == "cpu"
    assert all((fresh.adapters()[name] == tensor).all() for name, tensor in expected.items())
    given = {name: tensor + 1 for name, tensor in expected.items()}
    loaded = create_engine("cpu", weights, lora, seed=0, adapters=given)
    assert all((loaded.adapters()[name] == tensor).all() for name, tensor in given.items())
    assert create_engine("cpu", weights, None, seed=0).adapters() == {}
