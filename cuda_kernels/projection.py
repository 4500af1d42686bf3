"""One projection with its LoRA term, forward and backward: reference/projection.py on the GPU.

    xa = (x * mask) A^T             y  = x W^T + xa (s B)^T + bias
    dxa = dy (s B)                  dx = dy W + (dxa A) * mask
    dA += dxa^T (x * mask)          dB += s dy^T xa

Without dropout the mask is 1, and both sums are one product each whose loop goes on over the rank. With it, the
term of dx is masked on its way into a float32 addend.

Products over tokens (dA, dB) have few tiles: the tokens are split over blocks, and the parts added in order.
"""

from dataclasses import dataclass

import numpy as np

from nf4tui.cuda_kernels.adapters import DeviceAdapters
from nf4tui.cuda_kernels.arena import Memory
from nf4tui.cuda_kernels.device import Device, DeviceArray
from nf4tui.cuda_kernels.dropout import Dropout
from nf4tui.cuda_kernels.gemm import DEPTH, Layout, Operand, gemm
from nf4tui.cuda_kernels.lora import add_splits
from nf4tui.cuda_kernels.parameters import DeviceParameters, aligned
from nf4tui.cuda_kernels.taps import Tap, no_tap
from nf4tui.lora import PROJECTIONS, projection_path

SPLITS = 16  # at most, of the tokens


def layout(M: int, N: int, *, a_rows: bool = True, b_rows: bool = True, bf16: bool = True) -> Layout:
    """A tile that fits the product: a thin one wastes most of a large tile."""
    return Layout(a_rows, b_rows, bf16, 128 if M > 64 else 64, 128 if N > 64 else 64 if N > 32 else 32)


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over a batch. shape: (B, T). positions, starts: [N] int32 (attention.py). dropout: None but in
    training with it."""

    shape: tuple[int, int]
    positions: DeviceArray
    starts: DeviceArray
    dropout: Dropout | None = None
    tap: Tap = no_tap


class Projections:
    """Launches them for N tokens."""

    def __init__(
        self,
        device: Device,
        memory: Memory,
        parameters: DeviceParameters,
        adapters: DeviceAdapters,
        tokens: int,
    ) -> None:
        self.device, self.parameters, self.adapters, self.tokens = device, parameters, adapters, tokens
        rank = adapters.largest_rank
        widest = max(max(parameters.config.projection_shape(name)) for name in PROJECTIONS)
        self._dxa = memory.empty(tokens * aligned(rank), np.uint16)
        self._splits = max(1, min(SPLITS, tokens // (4 * DEPTH)))
        self._parts = memory.empty(self._splits * rank * widest, np.float32)
        dropping = adapters.lora is not None and adapters.lora.dropout > 0
        self._masked = memory.empty(tokens * widest if dropping else 0, np.uint16)
        self._through = memory.empty(tokens * widest if dropping else 0, np.float32)

    def forward(
        self,
        run: Run,
        layer: int,
        name: str,
        y: Operand,
        x: Operand,
        xa: DeviceArray,
        residual: DeviceArray | None = None,
    ) -> None:
        """y [N, out] of x [N, in], plus `residual`. xa: [N, R], which the backward needs."""
        path = projection_path(layer, name)
        out, into = self.parameters.config.projection_shape(name)
        rank, N = self.adapters.rank(path), self.tokens
        second = None
        if rank:
            a = self.adapters.operand(path, "lora_A")
            product = Operand(xa, aligned(rank))
            gemm(self.device, layout(N, rank), product, self._seen(run, path, x, into), a, (N, rank, into))
            second = (product, self.adapters.operand(path, "lora_B"), rank)
        bias = self.parameters.bias(layer, name)
        shape, kind = (N, out, into), layout(N, out)
        if run.tap is not no_tap:
            # What a fused kernel does not store comes from the same kernel: without the residual, and LoRA's term
            # from a matrix of zeros.
            weight = self.parameters.matrix(layer, name)
            gemm(self.device, kind, y, x, weight, shape, second=second, bias=bias)
            run.tap(path, y, out)
            if second is not None:
                run.tap(f"{path}.lora_xa", second[0], rank)
                gemm(self.device, kind, y, x, self.parameters.zeros(name), shape, second=second)
                run.tap(f"{path}.lora_delta", y, out)
        weight = self.parameters.matrix(layer, name)
        gemm(self.device, kind, y, x, weight, shape, second=second, bias=bias, residual=residual)

    def backward(
        self,
        run: Run,
        layer: int,
        name: str,
        dx: Operand,
        dy: Operand,
        x: Operand,
        xa: DeviceArray,
        addend: DeviceArray | None = None,
        *,
        accumulate: bool = False,
    ) -> None:
        """dx [N, in] of dy [N, out]: bfloat16, plus the float32 `addend`; or where dx is float32 added to it or
        put in its place. Adds to the gradients of A and B. x, xa: the forward's."""
        path = projection_path(layer, name)
        out, into = self.parameters.config.projection_shape(name)
        rank, N = self.adapters.rank(path), self.tokens
        run.tap(f"{path}.grad", dy, out)
        second = None
        if rank:
            dxa = Operand(self._dxa.part(0, N * aligned(rank)), aligned(rank))
            b, a = (self.adapters.operand(path, part) for part in ("lora_B", "lora_A"))
            gemm(self.device, layout(N, rank, b_rows=False), dxa, dy, b, (N, rank, out))
            run.tap(f"{path}.lora_delta.grad", dy, out)
            run.tap(f"{path}.lora_xa.grad", dxa, rank)
            seen, product = self._seen(run, path, x, into), Operand(xa, aligned(rank))
            self._over_tokens(run, path, "lora_A", dxa, seen, (rank, into), 1.0)
            self._over_tokens(run, path, "lora_B", dy, product, (out, rank), self.adapters.scaling(path))
            if run.dropout is None:
                second = (dxa, a, rank)
            else:
                through = Operand(self._through.part(0, N * into), into)
                shape = layout(N, into, b_rows=False, bf16=False)
                gemm(self.device, shape, through, dxa, a, (N, into, rank))
                wide = dx.array.dtype == np.float32
                target = dx.array if wide else through.array if addend is None else addend
                adds = accumulate if wide else addend is not None
                run.dropout.backward(self.device, target, through.array, path, N, into, adds=adds)
                addend, accumulate = None if wide else target, wide
        bf16 = dx.array.dtype == np.uint16
        gemm(
            self.device,
            layout(N, into, b_rows=False, bf16=bf16),
            dx,
            dy,
            self.parameters.matrix(layer, name),
            (N, into, out),
            second=second,
            addend=addend,
            accumulate=accumulate,
        )

    def _seen(self, run: Run, path: str, x: Operand, width: int) -> Operand:
        """What A is multiplied with: x, or x * mask, made again in the backward."""
        if run.dropout is None:
            return x
        masked = Operand(self._masked.part(0, self.tokens * width), width)
        run.dropout.forward(self.device, masked.array, x.array, path, self.tokens, width)
        return masked

    def _over_tokens(
        self,
        run: Run,
        path: str,
        part: str,
        left: Operand,
        right: Operand,
        shape: tuple[int, int],
        scale: float,
    ) -> None:
        """gradient [M, N] += scale * left^T right, both [tokens, ...]."""
        M, N = shape
        gradient = self.adapters.gradient(path, part)
        parts = self._parts.part(0, self._splits * M * N)
        kind = layout(M, N, a_rows=False, b_rows=False, bf16=False)
        gemm(self.device, kind, Operand(parts, N), left, right, (M, N, self.tokens), splits=self._splits)
        add_splits(self.device, gradient, parts, self._splits, scale)
        run.tap(f"{path}.grad_{part}", Operand(gradient, N), N)
