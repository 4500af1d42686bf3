"""The second half of a layer:  y = r + down_proj(swiglu(gate_proj(m), up_proj(m))),  m = rms_norm(r).

Activations are [N, ...] with N = B * T.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nf4tui.reference.projection import Gradients, Pass, project, unproject
from nf4tui.reference.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.reference.rounding import Point
from nf4tui.reference.swiglu import swiglu_backward, swiglu_forward

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MlpSaved:
    """What the backward needs; xa by projection."""

    r: Array
    norm: Array
    rstd: Array
    gate: Array
    up: Array
    swiglu: Array
    xa: dict[str, Array | None]


def mlp_block_forward(run: Pass, layer: int, r: Array) -> tuple[Array, MlpSaved]:
    """r [N, D] -> y [N, D]."""
    path, xa = f"layers.{layer}", dict[str, Array | None]()
    eps = run.parameters.source.config.rms_norm_eps
    m, rstd = rms_norm_forward(r, run.parameters.mlp_norms[layer], eps, run.rnd)
    m = run.tap(f"{path}.mlp_norm", m)
    rstd = run.tap(f"{path}.mlp_norm.rstd", rstd)
    gate, xa["gate_proj"] = project(run, layer, "gate_proj", m)
    up, xa["up_proj"] = project(run, layer, "up_proj", m)
    swiglu = run.tap(f"{path}.mlp.swiglu", swiglu_forward(gate, up, run.rnd))
    down, xa["down_proj"] = project(run, layer, "down_proj", swiglu)
    y = run.tap(f"{path}.output", run.rnd(r + down, Point.RESIDUAL))
    return y, MlpSaved(r, m, rstd, gate, up, swiglu, xa)


def mlp_block_backward(run: Pass, layer: int, dy: Array, saved: MlpSaved, gradients: Gradients) -> Array:
    """dy [N, D] -> dr [N, D]; adds the LoRA gradients to `gradients`."""
    path, s = f"layers.{layer}", saved
    dy = run.tap(f"{path}.output.grad", dy)
    dswiglu = unproject(run, layer, "down_proj", dy, s.swiglu, s.xa["down_proj"], gradients)
    dswiglu = run.tap(f"{path}.mlp.swiglu.grad", run.rnd(dswiglu, Point.ACTIVATION_GRAD))
    dgate, dup = swiglu_backward(dswiglu, s.gate, s.up, run.rnd)
    dm = unproject(run, layer, "gate_proj", dgate, s.norm, s.xa["gate_proj"], gradients)
    dm += unproject(run, layer, "up_proj", dup, s.norm, s.xa["up_proj"], gradients)
    dm = run.tap(f"{path}.mlp_norm.grad", run.rnd(dm, Point.ACTIVATION_GRAD))
    dr = dy + rms_norm_backward(dm, s.r, run.parameters.mlp_norms[layer], s.rstd)
    return run.rnd(dr, Point.ACTIVATION_GRAD)
