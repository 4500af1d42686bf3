"""A model's frozen parameters in host memory: NF4 projections, everything else in its stored precision."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nf4tui.models.qwen2 import Qwen2Config

NF4_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Nf4Tensor:
    """A [out, in] matrix in NF4 (QLoRA, arXiv 2305.14314): blocks of 64 along the flattened row-major
    matrix, two codes a byte, the first in the high nibble. value = NF4_CODE[code] * absmax[block].

    packed: [ceil(out * in / 2)] uint8
    absmax: [ceil(out * in / 64)] float32
    """

    packed: NDArray[np.uint8]
    absmax: NDArray[np.float32]
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.absmax.nbytes


@dataclass(frozen=True, slots=True)
class DenseTensor:
    """A tensor in its checkpoint's own precision, since a float32 copy of an embedding would double the
    host memory. bfloat16 is held as its uint16 bits (NumPy has no bfloat16)."""

    data: NDArray[Any]  # uint16 (bfloat16 bits), float16 or float32

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def float32(self, rows: slice | NDArray[Any] = slice(None)) -> NDArray[np.float32]:
        """The chosen rows, widened exactly to float32."""
        part = self.data[rows]
        if part.dtype == np.uint16:
            return (part.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(part, dtype=np.float32)


class DenseMatrix(Protocol):
    """A projection that is not quantised: of a merged model, held in memory or made when it is asked for."""

    def float32(self) -> NDArray[np.float32]:
        """[out, in]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """attn_norm, mlp_norm: [D] float32 (Hugging Face: input_layernorm, post_attention_layernorm).
    projections: by name (lora.PROJECTIONS); dense only where a merged model is measured.
    biases: q_proj, k_proj, v_proj only, [out] float32."""

    attn_norm: NDArray[np.float32]
    mlp_norm: NDArray[np.float32]
    projections: dict[str, Nf4Tensor | DenseMatrix]
    biases: dict[str, NDArray[np.float32]]

    def nf4(self, projection: str) -> Nf4Tensor:
        """A projection in NF4. Raises TypeError for a dense one."""
        tensor = self.projections[projection]
        if not isinstance(tensor, Nf4Tensor):
            raise TypeError(f"{projection} is not quantised")
        return tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """embedding: [V, D]. lm_head: [V, D], or None where the head is tied to the embedding."""

    config: Qwen2Config
    embedding: DenseTensor
    layers: tuple[LayerWeights, ...]
    final_norm: NDArray[np.float32]
    lm_head: DenseTensor | None

    @property
    def head(self) -> DenseTensor:
        """The matrix of the LM head, tied or not."""
        return self.embedding if self.lm_head is None else self.lm_head
