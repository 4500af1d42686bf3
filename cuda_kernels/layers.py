"""A decoder layer, forward and backward: reference/attention_block.py and mlp_block.py on the GPU.

What a layer keeps for its backward is what costs a matrix product to make again; norms and SwiGLU are made again
from it. Without the room for that, one set of Activations serves all layers: only each layer's output is
kept, and the backward of a layer begins with its forward. Both ways give the same bits.
"""

import numpy as np

from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.attention import attention_forward
from nf4tui.cuda_kernels.attention_backward import attention_backward
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.gemm import Operand
from nf4tui.cuda_kernels.parameters import aligned
from nf4tui.cuda_kernels.projection import Projections, Run
from nf4tui.cuda_kernels.rms_norm import rms_norm_backward, rms_norm_forward
from nf4tui.cuda_kernels.rope import rope_backward, rope_forward
from nf4tui.cuda_kernels.swiglu import swiglu_backward, swiglu_forward
from nf4tui.lora import PROJECTIONS


def rows(memory: Memory, tokens: int, width: int) -> Operand:
    """[tokens, width] bfloat16. width: a multiple of 8."""
    return Operand(memory.empty(tokens * width, np.uint16), width)


class Activations:
    """What a layer keeps beside its output. All [N, width] bfloat16 but rstd [N] and lse [N, H], float32."""

    def __init__(self, memory: Memory, projections: Projections) -> None:
        config, N = projections.parameters.config, projections.tokens
        D, F = config.hidden_size, config.intermediate_size
        kv = config.num_key_value_heads * config.head_dim
        self.q, self.context, self.residual = (rows(memory, N, D) for _ in range(3))
        self.k, self.v = rows(memory, N, kv), rows(memory, N, kv)
        self.gate, self.up = rows(memory, N, F), rows(memory, N, F)
        self.rstd, self.mlp_rstd = memory.empty(N, np.float32), memory.empty(N, np.float32)
        self.lse = memory.empty(N * config.num_attention_heads, np.float32)
        rank = aligned(projections.adapters.largest_rank)
        self.xa = {name: memory.empty(N * rank, np.uint16) for name in PROJECTIONS}


class Layers:
    """Launches layers over N tokens, with the buffers that they share."""

    def __init__(self, device: Device, memory: Memory, projections: Projections) -> None:
        self._device, self._projections = device, projections
        self._config, self._parameters = projections.parameters.config, projections.parameters
        N, D, F = projections.tokens, self._config.hidden_size, self._config.intermediate_size
        kv = self._config.num_key_value_heads * self._config.head_dim
        self._norm, self._swiglu, self._dswiglu = (rows(memory, N, width) for width in (D, F, F))
        self._d, self._dq, self._dk, self._dv = (rows(memory, N, width) for width in (D, D, kv, kv))
        self._dr = rows(memory, N, D)
        self._sum = Operand(memory.empty(N * D, np.float32), D)
        self._delta = memory.empty(N * self._config.num_attention_heads, np.float32)

    def forward(self, run: Run, layer: int, kept: Activations, y: Operand, x: Operand) -> None:
        """y [N, D], the layer's output, of its input x [N, D]."""
        config, path = self._config, f"layers.{layer}"
        heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.queries_keys_values(run, layer, kept, x)
        arrays = kept.q.array, kept.k.array, kept.v.array, run.starts
        attention_forward(self._device, kept.context.array, kept.lse, *arrays, run.shape, heads, kv_heads, d)
        run.tap(f"{path}.attn.context", kept.context, heads * d)
        run.tap(f"{path}.attn.lse", Operand(kept.lse, heads), heads)
        self.after_attention(run, layer, kept, y, x)

    def queries_keys_values(self, run: Run, layer: int, kept: Activations, x: Operand) -> None:
        """q and k after RoPE, and v, of the layer's input."""
        config, path, project = self._config, f"layers.{layer}", self._projections.forward
        D, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
        heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self._norm_of(x, kept.rstd, self._parameters.attn_norms[layer])
        run.tap(f"{path}.attn_norm", self._norm, D)
        run.tap(f"{path}.attn_norm.rstd", Operand(kept.rstd, 1), 1)
        for name, to in (("q_proj", kept.q), ("k_proj", kept.k), ("v_proj", kept.v)):
            project(run, layer, name, to, self._norm, kept.xa[name])
        table = self._parameters.cos, self._parameters.sin, run.positions
        rope_forward(self._device, kept.q.array, kept.q.array, *table, heads, d, D)
        rope_forward(self._device, kept.k.array, kept.k.array, *table, kv_heads, d, kv)
        run.tap(f"{path}.attn.q_rope", kept.q, D)
        run.tap(f"{path}.attn.k_rope", kept.k, kv)

    def after_attention(self, run: Run, layer: int, kept: Activations, y: Operand, x: Operand) -> None:
        """The layer's output from the context on."""
        config, path, project = self._config, f"layers.{layer}", self._projections.forward
        D = config.hidden_size
        project(run, layer, "o_proj", kept.residual, kept.context, kept.xa["o_proj"], x.array)
        run.tap(f"{path}.attn_residual", kept.residual, D)
        self._norm_of(kept.residual, kept.mlp_rstd, self._parameters.mlp_norms[layer])
        run.tap(f"{path}.mlp_norm", self._norm, D)
        run.tap(f"{path}.mlp_norm.rstd", Operand(kept.mlp_rstd, 1), 1)
        for name, to in (("gate_proj", kept.gate), ("up_proj", kept.up)):
            project(run, layer, name, to, self._norm, kept.xa[name])
        swiglu_forward(self._device, self._swiglu.array, kept.gate.array, kept.up.array)
        run.tap(f"{path}.mlp.swiglu", self._swiglu, config.intermediate_size)
        project(run, layer, "down_proj", y, self._swiglu, kept.xa["down_proj"], kept.residual.array)
        run.tap(f"{path}.output", y, D)

    def backward(self, run: Run, layer: int, kept: Activations, dy: Operand, x: Operand) -> None:
        """Replaces dy [N, D], the gradient of the layer's output, by that of its input x."""
        path, D, unproject = f"layers.{layer}", self._config.hidden_size, self._projections.backward
        run.tap(f"{path}.output.grad", dy, D)
        swiglu_forward(self._device, self._swiglu.array, kept.gate.array, kept.up.array)
        unproject(run, layer, "down_proj", self._dswiglu, dy, self._swiglu, kept.xa["down_proj"])
        run.tap(f"{path}.mlp.swiglu.grad", self._dswiglu, self._config.intermediate_size)
        dgate, dup = kept.gate, kept.up  # in place: nobody reads gate and up after this
        arrays = dgate.array, dup.array, self._dswiglu.array, kept.gate.array, kept.up.array
        swiglu_backward(self._device, *arrays)
        self._norm_of(kept.residual, kept.mlp_rstd, self._parameters.mlp_norms[layer])
        unproject(run, layer, "gate_proj", self._sum, dgate, self._norm, kept.xa["gate_proj"])
        unproject(run, layer, "up_proj", self._d, dup, self._norm, kept.xa["up_proj"], self._sum.array)
        run.tap(f"{path}.mlp_norm.grad", self._d, D)
        norm = self._parameters.mlp_norms[layer], kept.mlp_rstd
        self._norm_backward(self._dr, self._d, kept.residual, *norm, dy)
        run.tap(f"{path}.attn_residual.grad", self._dr, D)
        unproject(run, layer, "o_proj", self._d, self._dr, kept.context, kept.xa["o_proj"])
        run.tap(f"{path}.attn.context.grad", self._d, D)
        self._attention_backward(run, layer, kept)
        self._norm_of(x, kept.rstd, self._parameters.attn_norms[layer])
        unproject(run, layer, "q_proj", self._sum, self._dq, self._norm, kept.xa["q_proj"])
        unproject(run, layer, "k_proj", self._sum, self._dk, self._norm, kept.xa["k_proj"], accumulate=True)
        unproject(run, layer, "v_proj", self._d, self._dv, self._norm, kept.xa["v_proj"], self._sum.array)
        run.tap(f"{path}.attn_norm.grad", self._d, D)
        self._norm_backward(dy, self._d, x, self._parameters.attn_norms[layer], kept.rstd, self._dr)

    def _attention_backward(self, run: Run, layer: int, kept: Activations) -> None:
        """dq, dk and dv before RoPE, from the gradient of the context."""
        config, path = self._config, f"layers.{layer}.attn"
        heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        D, kv = heads * d, kv_heads * d
        out = self._dq.array, self._dk.array, self._dv.array, self._delta
        arrays = self._d.array, kept.q.array, kept.k.array, kept.v.array, kept.context.array, kept.lse
        attention_backward(self._device, *out, *arrays, run.starts, run.shape, heads, kv_heads, d)
        run.tap(f"{path}.q_rope.grad", self._dq, D)
        run.tap(f"{path}.k_rope.grad", self._dk, kv)
        table = self._parameters.cos, self._parameters.sin, run.positions
        rope_backward(self._device, self._dq.array, self._dq.array, *table, heads, d, D)
        rope_backward(self._device, self._dk.array, self._dk.array, *table, kv_heads, d, kv)

    def _norm_of(self, x: Operand, rstd: DeviceArray, weight: DeviceArray) -> None:
        N, D, eps = self._projections.tokens, self._config.hidden_size, self._config.rms_norm_eps
        rms_norm_forward(self._device, self._norm.array, rstd, x.array, weight, N, D, D, eps)

    def _norm_backward(
        self,
        dx: Operand,
        dy: Operand,
        x: Operand,
        weight: DeviceArray,
        rstd: DeviceArray,
        residual: Operand,
    ) -> None:
        N, D = self._projections.tokens, self._config.hidden_size
        arrays = dx.array, dy.array, x.array, weight, rstd, residual.array
        rms_norm_backward(self._device, *arrays, N, D, D)
