"""Taps: their names, shapes and order, and that they are the numbers of a step."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from nf4tui.engine import Batch, Tensors, Update
from nf4tui.lora import PROJECTIONS, LoraConfig, projection_path
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.compare import rel_l2
from nf4tui.reference.engine import ReferenceEngine

LORA = LoraConfig(rank=3, alpha=8.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
STATISTICS = (".rstd", ".lse", "loss")


def _layer_taps(config: Qwen2Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes after [B, T], as docs/architecture.md lists them."""
    path, width = f"layers.{layer}", (config.hidden_size,)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    for norm in ("attn_norm", "mlp_norm"):
        yield f"{path}.{norm}", width
        yield f"{path}.{norm}.rstd", ()
    yield f"{path}.attn.q_rope", (heads, config.head_dim)
    yield f"{path}.attn.k_rope", (kv_heads, config.head_dim)
    yield f"{path}.attn.context", (heads, config.head_dim)
    yield f"{path}.attn.lse", (heads,)
    yield f"{path}.attn_residual", width
    yield f"{path}.mlp.swiglu", (config.intermediate_size,)
    yield f"{path}.output", width
    for name in PROJECTIONS:
        out = config.projection_shape(name)[:1]
        yield projection_path(layer, name), out
        if name in LORA.targets:
            yield f"{projection_path(layer, name)}.lora_xa", (LORA.rank,)
            yield f"{projection_path(layer, name)}.lora_delta", out


def _expected(config: Qwen2Config, batch: Batch) -> dict[str, tuple[int, ...]]:
    by_token = {"hidden.0": (config.hidden_size,), "final_norm": (config.hidden_size,)}
    by_token |= {"final_norm.rstd": (), "logits": (config.vocab_size,)}
    for layer in range(config.num_hidden_layers):
        by_token |= dict(_layer_taps(config, layer))
    by_token |= {f"{name}.grad": shape for name, shape in by_token.items() if not name.endswith(STATISTICS)}
    shapes: dict[str, tuple[int, ...]] = {"loss": ()}
    shapes |= {name: (*batch.input_ids.shape, *shape) for name, shape in by_token.items()}
    for layer in range(config.num_hidden_layers):
        for name in LORA.targets:
            out, into = config.projection_shape(name)
            shapes[f"{projection_path(layer, name)}.grad_lora_A"] = (LORA.rank, into)
            shapes[f"{projection_path(layer, name)}.grad_lora_B"] = (out, LORA.rank)
    return shapes


@pytest.fixture
def engine(
    make_weights: Callable[..., ModelWeights], make_adapters: Callable[..., Tensors]
) -> ReferenceEngine:
    weights = make_weights()
    return ReferenceEngine(weights, LORA, dtype=np.float64, adapters=make_adapters(weights.config, LORA))


def test_every_tap_of_the_legend_comes_once_with_its_shape(
    engine: ReferenceEngine, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(61)
    taps = [(name, array.shape) for name, array in engine.capture(batch)]
    assert len(taps) == len(dict(taps))
    assert dict(taps) == _expected(engine.model.config, batch)


def test_the_order_is_forward_then_backward(
    engine: ReferenceEngine, make_batch: Callable[..., Batch]
) -> None:
    names = [name for name, _ in engine.capture(make_batch(61))]
    order = [
        "hidden.0", "layers.0.attn_norm", "layers.0.attn.q_proj", "layers.0.attn.q_rope",
        "layers.0.attn_residual", "layers.0.output", "layers.1.output", "final_norm", "logits", "loss",
        "logits.grad", "final_norm.grad", "layers.1.output.grad", "layers.1.mlp.down_proj.grad_lora_A",
        "layers.1.attn_residual.grad", "layers.0.output.grad", "layers.0.attn_norm.grad", "hidden.0.grad",
    ]  # fmt: skip
    places = [names.index(name) for name in order]
    assert places == sorted(places)


def test_taps_add_up(engine: ReferenceEngine, make_batch: Callable[..., Batch]) -> None:
    taps = dict(engine.capture(make_batch(61)))
    residual = taps["hidden.0"] + taps["layers.0.attn.o_proj"]
    assert rel_l2(taps["layers.0.attn_residual"], residual) < 1e-14
    adapters = engine.adapters()
    path = "layers.1.mlp.down_proj"
    xa = taps["layers.1.mlp.swiglu"] @ adapters[f"{path}.lora_A"].T
    assert rel_l2(taps[f"{path}.lora_xa"], xa) < 1e-13
    delta = LORA.scaling_of(path) * xa @ adapters[f"{path}.lora_B"].T
    assert rel_l2(taps[f"{path}.lora_delta"], delta) < 1e-13
    base = taps["layers.1.mlp.swiglu"] @ engine.model.parameters.matrix(1, "down_proj").T
    assert rel_l2(taps[path], base + delta) < 1e-13
    assert rel_l2(taps["layers.1.output"], taps["layers.1.attn_residual"] + taps[path]) < 1e-14


def test_captured_gradients_are_those_of_a_step(
    engine: ReferenceEngine, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(61)
    taps = dict(engine.capture(batch))
    gradients = {
        name.replace(".grad_lora_", ".lora_"): tap for name, tap in taps.items() if ".grad_lora_" in name
    }
    before = engine.adapters()
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    result = engine.step([batch], Update(step=1, lr=0.0, weight_decay=0.0))
    assert rel_l2(taps["loss"], result.loss) < 1e-13 and rel_l2(norm, result.grad_norm) < 1e-12
    # Adam's first moment after one unclipped step is a tenth of the gradient.
    engine.load_adapters(before)
    other = ReferenceEngine(engine.model.parameters.source, LORA, dtype=np.float64, adapters=before)
    other.step([batch], Update(step=1, lr=0.0, clip=0.0))
    for name, moment in other.optimizer_state().exp_avg.items():
        assert rel_l2(moment, 0.1 * gradients[name]) < 1e-11, name


def test_activation_gradients_are_derivatives(
    engine: ReferenceEngine, make_batch: Callable[..., Batch]
) -> None:
    """The gradient of an activation tap, by restarting the model from a moved activation."""
    batch, model = make_batch(61), engine.model
    taps = dict(engine.capture(batch))
    run = model.begin(batch, model.lora_operands(engine.adapters()))
    shape = (batch.input_ids.size, -1)

    def loss(x: np.ndarray, layer: int) -> float:
        for place in range(layer, 2):
            x, _ = model.layer_forward(place, x, run)
        return float(model.head_loss(model.final_norm(x)[0], batch)[0].sum()) / batch.supervised_tokens

    for layer, name in enumerate(("hidden.0", "layers.0.output", "layers.1.output")):
        x = taps[name].reshape(shape)
        direction = np.random.default_rng(layer).standard_normal(x.shape)
        numeric = (loss(x + 1e-5 * direction, layer) - loss(x - 1e-5 * direction, layer)) / 2e-5
        assert rel_l2(numeric, np.vdot(taps[f"{name}.grad"], direction)) < 1e-6, name
