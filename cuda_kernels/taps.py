"""Who sees the tensors of a pass: nobody in training, the parity gate in a capture.

Names are those of docs/architecture.md. A tap is called after the kernels that write the tensor were enqueued, and
before any that overwrite it.
"""

from collections.abc import Callable

from nf4tui.cuda_kernels.gemm import Operand

Tap = Callable[[str, Operand, int], None]


def no_tap(name: str, rows: Operand, width: int) -> None:
    """Ignores the tensor [N, width]."""
