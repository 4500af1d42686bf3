"""A run that is ready to train: what prepare.py makes and the loop works with."""

from dataclasses import dataclass

from nf4tui.config import TrainConfig
from nf4tui.data.batches import BatchPlan
from nf4tui.engine import Batch, Engine, Update
from nf4tui.lora import LoraConfig
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.runs.events import LogEvent
from nf4tui.schedule import auto_lr, learning_rate
from nf4tui.training.circumstances import Circumstances
from nf4tui.training.precision import PrecisionProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """config: with what depends on model and adapter settled. lora: the adapters' settings, config.lora unless
    the run goes on from an adapter whose modules differ. validation: empty where there is none.
    check_batch: on it the adapter read back must give the loss it had. counts: about the data, by name.
    notes: what the run should say about itself at its start. eos_token_ids: what generation from the adapter
    stops at, the end that answers were trained with first."""

    config: TrainConfig
    lora: LoraConfig
    model: Qwen2Config
    engine: Engine
    plan: BatchPlan
    validation: tuple[Batch, ...]
    validation_samples: int
    check_batch: Batch
    probe: PrecisionProbe | None
    total_steps: int
    eval_every: int
    save_every: int
    probe_every: int
    circumstances: Circumstances
    counts: dict[str, int]
    notes: tuple[LogEvent, ...]
    eos_token_ids: tuple[int, ...]

    def update(self, step: int) -> Update:
        """The optimiser's settings of a step."""
        config = self.config
        lr = learning_rate(
            step,
            self.total_steps,
            peak=auto_lr(config.rank) if config.lr is None else config.lr,
            schedule=config.schedule,
            warmup=config.warmup,
        )
        return Update(step=step, lr=lr, weight_decay=config.weight_decay, clip=config.clip, seed=config.seed)
