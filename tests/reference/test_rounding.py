"""The emulation E: what a model stores at every tap, and that it stays close to the truth R."""

from collections.abc import Callable

import numpy as np

from nf4tui.bf16 import round_to_bf16
from nf4tui.engine import Batch, Tensors
from nf4tui.lora import LoraConfig
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.engine import ReferenceEngine
from nf4tui.reference.rounding import BF16, EXACT, Point, Stored

LORA = LoraConfig(rank=3, alpha=8.0)
IN_FLOAT32 = (".rstd", ".lse", ".grad_lora_A", ".grad_lora_B", "logits", "loss")


def test_every_point_gives_its_reason_and_is_obeyed() -> None:
    x = np.random.default_rng(0).standard_normal(100, dtype=np.float32)
    for point in Point:
        assert len(point.value.why) > 10
        rounded = point.value.stored is Stored.BF16
        np.testing.assert_array_equal(BF16(x, point), round_to_bf16(x) if rounded else x)
        assert EXACT(x, point) is x


def test_the_emulation_stores_each_tap_as_declared_and_keeps_the_declared_error(
    make_weights: Callable[..., ModelWeights],
    make_adapters: Callable[..., Tensors],
    make_batch: Callable[..., Batch],
) -> None:
    weights = make_weights()
    batch, adapters = make_batch(61), make_adapters(weights.config, LORA)
    exact = ReferenceEngine(weights, LORA, dtype=np.float64, adapters=adapters)
    emulation = ReferenceEngine(weights, LORA, rnd=BF16, adapters=adapters)
    for (name, truth), (other, stored) in zip(exact.capture(batch), emulation.capture(batch), strict=True):
        assert name == other and stored.shape == truth.shape
        if name == "loss":
            assert abs(float(stored) - float(truth)) < 3e-2
            continue
        assert stored.dtype == np.float32 and truth.dtype == np.float64
        is_rounded = bool((round_to_bf16(stored) == stored).all())
        assert is_rounded != name.endswith(IN_FLOAT32), name
        assert rel_l2(stored, truth) < 6e-2, name
        if is_rounded and name != "hidden.0":
            assert rel_l2(stored, truth) > 1e-5, name
