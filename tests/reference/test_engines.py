from collections.abc import Callable

import pytest

from nf4tui import gpu
from nf4tui.engines import choose_device, create_engine
from nf4tui.errors import CannotRunError, InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.weights import ModelWeights


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_driver_is_there", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_auto_and_cpu_run_on_the_cpu_where_there_is_no_gpu() -> None:
    assert choose_device("auto") == choose_device("cpu") == "cpu"


@pytest.mark.usefixtures("no_gpu")
def test_cuda_without_a_gpu_says_what_is_missing_and_what_works() -> None:
    with pytest.raises(CannotRunError, match=r"no NVIDIA driver.*--device cpu"):
        choose_device("cuda")


def test_a_gpu_that_is_simulated_is_none_to_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_driver_is_there", lambda: True)
    with pytest.raises(CannotRunError, match="NUMBA_ENABLE_CUDASIM is set"):
        choose_device("cuda")


def test_an_unknown_name_is_refused_and_the_simulator_only_where_it_serves() -> None:
    for name in ("gpu", "sim"):
        with pytest.raises(InputError, match=f"'{name}'"):
            choose_device(name)
    assert choose_device("sim", simulator=True) == "sim"


def test_the_kernels_refuse_a_model_that_they_cannot_run(make_weights: Callable[..., ModelWeights]) -> None:
    with pytest.raises(CannotRunError, match="--device sim: hidden sizes must be multiples of 8"):
        create_engine("sim", make_weights(), LoraConfig(rank=2), seed=5)


def test_an_engine_starts_from_the_seed_or_from_given_adapters(
    make_weights: Callable[..., ModelWeights],
) -> None:
    weights, lora = make_weights(), LoraConfig(rank=2)
    fresh = create_engine("cpu", weights, lora, seed=5)
    expected = initial_adapters(weights.config, lora, 5)
    assert fresh.device == "cpu"
    assert all((fresh.adapters()[name] == tensor).all() for name, tensor in expected.items())
    given = {name: tensor + 1 for name, tensor in expected.items()}
    loaded = create_engine("cpu", weights, lora, seed=0, adapters=given)
    assert all((loaded.adapters()[name] == tensor).all() for name, tensor in given.items())
    assert create_engine("cpu", weights, None, seed=0).adapters() == {}
