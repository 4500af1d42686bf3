"""The first half of a layer:  r = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))),  n = rms_norm(x).

Activations are [N, ...] with N = B * T, save q, k, v and context: [B, T, heads, d].
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nf4tui.reference.attention import attention_backward, attention_forward
from nf4tui.reference.projection import Gradients, Pass, project, unproject
from nf4tui.reference.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.reference.rope import rope_backward, rope_forward
from nf4tui.reference.rounding import Point

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class AttentionSaved:
    """What the backward needs. q and k after RoPE; xa by projection."""

    x: Array
    norm: Array
    rstd: Array
    q: Array
    k: Array
    v: Array
    context: Array
    lse: Array
    xa: dict[str, Array | None]


def attention_block_forward(run: Pass, layer: int, x: Array) -> tuple[Array, AttentionSaved]:
    """x [N, D] -> r [N, D]."""
    config, path = run.parameters.source.config, f"layers.{layer}"
    xa: dict[str, Array | None] = {}
    n, rstd = rms_norm_forward(x, run.parameters.attn_norms[layer], config.rms_norm_eps, run.rnd)
    n = run.tap(f"{path}.attn_norm", n)
    rstd = run.tap(f"{path}.attn_norm.rstd", rstd)
    q, xa["q_proj"] = project(run, layer, "q_proj", n)
    k, xa["k_proj"] = project(run, layer, "k_proj", n)
    v, xa["v_proj"] = project(run, layer, "v_proj", n)
    q, k, v = (y.reshape(*run.shape, -1, config.head_dim) for y in (q, k, v))
    q, k = rope_forward(q, run.cos, run.sin, run.rnd), rope_forward(k, run.cos, run.sin, run.rnd)
    q, k = run.tap_tokens(f"{path}.attn.q_rope", q), run.tap_tokens(f"{path}.attn.k_rope", k)
    context, lse = attention_forward(q, k, v, run.spans, run.rnd)
    context = run.tap_tokens(f"{path}.attn.context", context)
    lse = run.tap_tokens(f"{path}.attn.lse", lse)
    o, xa["o_proj"] = project(run, layer, "o_proj", context.reshape(len(x), -1))
    r = run.tap(f"{path}.attn_residual", run.rnd(x + o, Point.RESIDUAL))
    return r, AttentionSaved(x, n, rstd, q, k, v, context, lse, xa)


def attention_block_backward(
    run: Pass, layer: int, dr: Array, saved: AttentionSaved, gradients: Gradients
) -> Array:
    """dr [N, D] -> dx [N, D]; adds the LoRA gradients to `gradients`."""
    path, s = f"layers.{layer}", saved
    dr = run.tap(f"{path}.attn_residual.grad", dr)
    flat_context = s.context.reshape(len(dr), -1)
    dcontext = unproject(run, layer, "o_proj", dr, flat_context, s.xa["o_proj"], gradients)
    dcontext = run.rnd(dcontext, Point.ACTIVATION_GRAD).reshape(s.context.shape)
    dcontext = run.tap_tokens(f"{path}.attn.context.grad", dcontext)
    dq, dk, dv = attention_backward(dcontext, s.q, s.k, s.v, s.context, s.lse, run.spans, run.rnd)
    dq, dk = run.tap_tokens(f"{path}.attn.q_rope.grad", dq), run.tap_tokens(f"{path}.attn.k_rope.grad", dk)
    dq, dk = rope_backward(dq, run.cos, run.sin, run.rnd), rope_backward(dk, run.cos, run.sin, run.rnd)
    dq, dk, dv = (d.reshape(len(dr), -1) for d in (dq, dk, dv))
    dn = unproject(run, layer, "q_proj", dq, s.norm, s.xa["q_proj"], gradients)
    dn += unproject(run, layer, "k_proj", dk, s.norm, s.xa["k_proj"], gradients)
    dn += unproject(run, layer, "v_proj", dv, s.norm, s.xa["v_proj"], gradients)
    dn = run.tap(f"{path}.attn_norm.grad", run.rnd(dn, Point.ACTIVATION_GRAD))
    dx = dr + rms_norm_backward(dn, s.x, run.parameters.attn_norms[layer], s.rstd)
    return run.rnd(dx, Point.ACTIVATION_GRAD)
