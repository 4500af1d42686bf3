"""Holds an engine against a recorded oracle (case.py), group by group.

The CPU engine is held in float32, as users train with it, and in float64; the worse of the two counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.engine import Engine, Tensors
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import read_adapter
from nf4tui.models.load import load_model
from nf4tui.models.qwen2 import projection_weights
from nf4tui.models.safetensors_file import open_safetensors
from nf4tui.models.weights import ModelWeights
from nf4tui.parity.case import QUANTISED_BASES, Case, check_against, read_case
from nf4tui.parity.compare import Comparison, rel_l2
from nf4tui.reference.engine import ReferenceEngine

LIMIT = 1e-5  # float32 noise of the oracle itself
STEP_LIMIT = 1e-6  # one AdamW step fed with the oracle's own gradients
PRECISIONS = (np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class Group:
    """One group of recorded tensors: its worst relL2 against its limit, over `tensors` comparisons.
    Exact groups (NF4 bytes) have the limit 0 and relL2 0 or infinity."""

    name: str
    comparison: Comparison
    tensors: int
    worst: str

    @property
    def ok(self) -> bool:
        return self.comparison.ok


def check_case(directory: Path) -> list[Group]:
    """Every group of the case, held against the reference. Raises InputError if the case is malformed."""
    case = read_case(directory)
    weights = load_model(directory / "base")
    lora, adapters = read_adapter(directory / "adapter", weights.config)
    check_against(case, weights.config, list(adapters))
    found: dict[str, list[tuple[str, float]]] = {}

    def note(group: str, name: str, error: float) -> None:
        found.setdefault(group, []).append((name, error))

    for name, equal in _nf4(case, weights):
        note("nf4", name, 0.0 if equal else np.inf)
    for dtype in PRECISIONS:
        for group, name, error in _with_adapter(case, weights, lora, adapters, dtype):
            note(group, f"{name} in {np.dtype(dtype).name}", error)
        for base in QUANTISED_BASES:
            if (directory / base).is_dir():
                error = _quantised_base(case, directory / base, dtype)
                note(f"{base}.logits", f"logits in {np.dtype(dtype).name}", error)
    return [_worst(group, errors) for group, errors in found.items()]


def _worst(group: str, errors: list[tuple[str, float]]) -> Group:
    # NaN is the worst of all, and max() would lose it.
    name, error = max(errors, key=lambda item: (np.isnan(item[1]), item[1]))
    limit = {"nf4": 0.0, "after_step": STEP_LIMIT}.get(group, LIMIT)
    return Group(group, Comparison(error, limit), len(errors), name)


def _nf4(case: Case, weights: ModelWeights) -> Iterator[tuple[str, bool]]:
    """Whether our quantiser's bytes are the recorded ones, for every matrix."""
    for layer, projection, weight in projection_weights(weights.config):
        module = weight.removesuffix(".weight")
        ours = weights.layers[layer].nf4(projection)
        for part, array in (("packed", ours.packed), ("absmax", ours.absmax)):
            name = f"nf4.{module}.{part}"
            if name not in case.golden.tensors:
                raise InputError(f"{case.golden.path}: missing tensor {name}")
            yield name, np.array_equal(array, case.tensor(name).reshape(-1))


def _engine(weights: ModelWeights, lora: LoraConfig | None, adapters: Tensors | None, dtype: Any) -> Engine:
    return ReferenceEngine(weights, lora, dtype=dtype, adapters=adapters)


def _with_adapter(
    case: Case, weights: ModelWeights, lora: LoraConfig, adapters: Tensors, dtype: Any
) -> Iterator[tuple[str, str, float]]:
    """(group, tensor, relL2) of everything that the adapted model computes."""
    engine, batch, rows = _engine(weights, lora, adapters, dtype), case.batch, case.attended
    last = weights.config.num_hidden_layers
    hidden = {f"layers.{layer}.output": f"hidden.{layer + 1}" for layer in range(last - 1)}
    hidden |= {"hidden.0": "hidden.0", "final_norm": f"hidden.{last}"}
    gradients = case.adapter_tensors("grad.")
    for tap, array in engine.capture(batch):
        name = tap.replace(".grad_lora_", ".lora_")
        if tap in hidden:
            yield "hidden", hidden[tap], rel_l2(array[rows], case.tensor(hidden[tap])[rows])
        elif tap == "logits":
            yield "logits", tap, rel_l2(array[rows], case.tensor(tap)[rows])
        elif tap == "loss":
            yield "loss", tap, _relative(float(array), case.scalar("loss"))
        elif name != tap:
            yield "grad", name, rel_l2(array, gradients[name])
    yield from _after_step(case, engine, _engine(weights, lora, adapters, dtype), gradients)


def _after_step(
    case: Case, engine: Engine, fed: Engine, gradients: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[str, str, float]]:
    """`engine` takes a step of its own; `fed` takes one with the recorded gradients."""
    result = engine.step([case.batch], case.update)
    yield "grad_norm", "grad_norm", _relative(result.grad_norm, case.scalar("grad_norm"))
    fed.apply_gradients(gradients, case.update)
    stepped = fed.adapters()
    for name, recorded in case.adapter_tensors("after_step.").items():
        yield "after_step", name, rel_l2(stepped[name], recorded)
    after = engine.evaluate(case.batch)
    yield "loss_after_step", "loss", _relative(after.total / after.tokens, case.scalar("loss_after_step"))


def _quantised_base(case: Case, directory: Path, dtype: Any) -> float:
    """relL2 of the logits of a pre-quantised base, without adapter."""
    golden = open_safetensors(directory / "golden_logits.safetensors")
    if "logits" not in golden.tensors:
        raise InputError(f"{golden.path}: missing tensor logits")
    weights = load_model(directory)
    expected = (*case.batch.input_ids.shape, weights.config.vocab_size)
    if golden.tensors["logits"].shape != expected:
        raise InputError(f"{golden.path}: logits must be {list(expected)}")
    logits = _engine(weights, None, None, dtype).logits(case.batch)
    return rel_l2(logits[case.attended], golden.read("logits")[case.attended])


def _relative(value: float, recorded: float) -> float:
    return rel_l2(np.array([value]), np.array([recorded]))
