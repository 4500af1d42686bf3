"""What a run takes of a device's memory, to the byte: the buffers' own constructors are asked, with a Planner in the
place of memory."""

from dataclasses import dataclass

from nf4tui.cuda_kernels.adapters import DeviceAdapters
from nf4tui.cuda_kernels.arena import Planner
from nf4tui.cuda_kernels.device import SimulatedDevice
from nf4tui.cuda_kernels.parameters import DeviceParameters
from nf4tui.cuda_kernels.qwen2 import Qwen2Passes
from nf4tui.lora import LoraConfig
from nf4tui.models.qwen2 import Qwen2Config


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes. parameters: the frozen model. adapters: weights, gradients, moments and operands. passes: activations
    and scratch of one batch shape."""

    parameters: int
    adapters: int
    passes: int

    @property
    def total(self) -> int:
        return self.parameters + self.adapters + self.passes


def plan(config: Qwen2Config, lora: LoraConfig | None, shape: tuple[int, int], *, recompute: bool) -> Plan:
    """For batches of shape (B, T). Raises ValueError for a model that the kernels cannot run."""
    nowhere = SimulatedDevice()  # never asked for memory
    planners = [Planner() for _ in range(3)]
    parameters = DeviceParameters(nowhere, planners[0], config)
    adapters = DeviceAdapters(nowhere, planners[1], config, lora)
    Qwen2Passes(nowhere, planners[2], parameters, adapters, shape, recompute=recompute)
    return Plan(*(planner.bytes for planner in planners))
