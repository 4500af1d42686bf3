"""The one declaration of where the GPU kernels store bfloat16, and the two ways to obey it.

Every op takes `rnd` and calls `rnd(x, Point.SOMETHING)` where its kernel writes x to memory or feeds it
to a tensor core. EXACT changes nothing: with float64 arrays that is the truth R of the parity contract.
BF16 rounds at the points declared bfloat16: with float32 arrays that is the emulation E, one text with R.
Between two points a kernel keeps float32, and so does E.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from numpy.typing import NDArray

from nf4tui.bf16 import round_to_bf16


class Stored(Enum):
    """The type in which a kernel writes a value."""

    BF16 = "bfloat16"
    FP32 = "float32"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a value is stored, and why."""

    stored: Stored
    why: str


class Point(Enum):
    """Every place where a kernel stores a tensor or hands an operand to the tensor cores."""

    WEIGHT = Rule(Stored.BF16, "tensor-core operand; code * absmax is formed in fp32 and rounded once")
    BIAS = Rule(Stored.FP32, "added to the fp32 accumulator")
    NORM_WEIGHT = Rule(Stored.FP32, "D values a layer; widening them costs nothing")
    EMBEDDING = Rule(Stored.BF16, "first row of the residual stream, which is bf16")
    HEAD = Rule(Stored.BF16, "tensor-core operand")
    LORA_A = Rule(Stored.BF16, "tensor-core operand, rounded from the fp32 master once a step")
    LORA_B = Rule(Stored.BF16, "tensor-core operand: scaling * B is rounded once from the fp32 master")
    LORA_INPUT = Rule(Stored.BF16, "tensor-core operand: x * dropout mask; with no dropout x itself")
    LORA_XA = Rule(Stored.BF16, "stored for the backward; tensor-core operand of the B product")
    LORA_DELTA = Rule(Stored.BF16, "stored only alone; inside a projection it stays in the accumulator")
    RSTD = Rule(Stored.FP32, "one value a row; its error would be common to the whole row")
    NORM = Rule(Stored.BF16, "activation, tensor-core operand")
    PROJECTION = Rule(Stored.BF16, "activation; weight, bias and LoRA product share one accumulator")
    ROPE_TABLE = Rule(Stored.FP32, "angles are made in float64, cosine and sine stored in fp32")
    ROPE = Rule(Stored.BF16, "activation, tensor-core operand")
    ATTENTION_P = Rule(Stored.BF16, "tensor-core operand: exp(s - max), not yet divided by its sum")
    LSE = Rule(Stored.FP32, "one value a row and head; exponentiated in the backward")
    CONTEXT = Rule(Stored.BF16, "activation, tensor-core operand")
    RESIDUAL = Rule(Stored.BF16, "residual stream: the sum is formed in fp32 and rounded once")
    SWIGLU = Rule(Stored.BF16, "activation, tensor-core operand")
    LOGITS = Rule(Stored.FP32, "never stored in training: they stay in the accumulator")
    LOSS = Rule(Stored.FP32, "a sum over thousands of tokens")
    LOGITS_GRAD = Rule(Stored.BF16, "tensor-core operand: (softmax - onehot) / tokens")
    ACTIVATION_GRAD = Rule(Stored.BF16, "gradient of an activation, stored as the activation is")
    ATTENTION_DS = Rule(Stored.BF16, "tensor-core operand of the q and k gradients")
    LORA_XA_GRAD = Rule(Stored.BF16, "tensor-core operand of the A and x gradients")
    LORA_GRAD = Rule(Stored.FP32, "summed over micro-batches, read by AdamW")


class Rounding(Protocol):
    """Applied by the ops: rnd(x, point) gives x as the kernel stores it at that point."""

    def __call__(self, x: NDArray[Any], point: Point, /) -> NDArray[Any]: ...


def EXACT(x: NDArray[Any], point: Point, /) -> NDArray[Any]:  # noqa: N802 - a constant of the interface
    """No rounding beyond the arrays' own dtype."""
    return x


def BF16(x: NDArray[Any], point: Point, /) -> NDArray[Any]:  # noqa: N802 - a constant of the interface
    """Rounded to bfloat16 where the kernels store bfloat16. x: float32."""
    return round_to_bf16(x) if point.value.stored is Stored.BF16 else x
