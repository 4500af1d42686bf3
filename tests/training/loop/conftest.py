"""A small deterministic engine, so that the loop is tested apart from any model, and a run made with it."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nf4tui.config import TrainConfig
from nf4tui.data.batches import BatchPlan, evaluation_batches
from nf4tui.data.conversation import Conversation
from nf4tui.data.samples import Sample
from nf4tui.engine import Batch, LossSum, OptimizerState, StepResult, Tensors, Update
from nf4tui.models.adapter import tensor_shapes
from nf4tui.models.qwen2 import Qwen2Config
from nf4tui.runs import directory
from nf4tui.runs.directory import RunDirectory
from nf4tui.runs.events import Event
from nf4tui.training import snapshot
from nf4tui.training.circumstances import Circumstances
from nf4tui.training.loop import train
from nf4tui.training.prepared import Prepared
from nf4tui.training.snapshot import Snapshot

MODEL = Qwen2Config(
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
CIRCUMSTANCES = Circumstances(
    base="b" * 64, data="d" * 64, device="cpu", processor="p", threads=1, versions={"numpy": "2"}
)


class FakeEngine:
    """Adapters pulled towards a value that each token asks for: loss = mean over supervised tokens of
    |W - goal(token)|^2 / 2, with AdamW. `poison`: tensor by step that turns non-finite there."""

    device = "cpu"

    def __init__(self, config: TrainConfig, poison: Mapping[int, str] | None = None) -> None:
        generator = np.random.Generator(np.random.Philox(key=config.seed))
        self._adapters: Tensors = {
            name: generator.standard_normal(shape, dtype=np.float32)
            for name, shape in tensor_shapes(MODEL, config.lora).items()
        }
        self._first = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}
        self._second = {name: np.zeros_like(tensor) for name, tensor in self._adapters.items()}
        self._updates = 0
        self._poison = poison or {}
        self.steps_taken: list[int] = []
        self.losses_of_evaluation: Iterator[float] | None = None

    def step(self, micro_batches: Sequence[Batch], update: Update) -> StepResult:
        self.steps_taken.append(update.step)
        total, tokens = 0.0, 0
        pull = np.float32(0)
        for batch in micro_batches:
            goals = _goals(batch)
            total += self._total(goals)
            pull += goals.sum(dtype=np.float32)
            tokens += goals.size
        # A stand-in for dropout: the update depends on the seed and the step.
        noise = np.float32(np.random.Philox(key=[update.seed, update.step]).random_raw() % 97 / 970)
        gradients = {name: tensor - pull / tokens + noise for name, tensor in self._adapters.items()}
        poisoned = self._poison.get(update.step)
        if poisoned is None:
            self.apply_gradients(gradients, update)
        norm = float(np.sqrt(sum(float(np.sum(value * value)) for value in gradients.values())))
        return StepResult(
            loss=float("nan") if poisoned else total / tokens,
            grad_norm=float("nan") if poisoned else norm,
            tokens=sum(batch.tokens for batch in micro_batches),
            supervised_tokens=tokens,
            nonfinite=1 if poisoned else 0,
            nonfinite_tensor=poisoned,
        )

    def apply_gradients(self, gradients: Mapping[str, NDArray[Any]], update: Update) -> float:
        self._updates += 1
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += np.float32(1 - update.beta1) * (gradient - first)
            second += np.float32(1 - update.beta2) * (gradient * gradient - second)
            unbiased = first / np.float32(1 - update.beta1**self._updates)
            scale = np.sqrt(second / np.float32(1 - update.beta2**self._updates)) + np.float32(update.eps)
            self._adapters[name] -= np.float32(update.lr) * unbiased / scale
        return 0.0

    def evaluate(self, batch: Batch) -> LossSum:
        goals = _goals(batch)
        if self.losses_of_evaluation is not None:
            return LossSum(next(self.losses_of_evaluation) * goals.size, goals.size)
        return LossSum(self._total(goals), goals.size)

    def adapters(self) -> Tensors:
        return {name: tensor.copy() for name, tensor in self._adapters.items()}

    def load_adapters(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        assert tensors.keys() == self._adapters.keys()
        self._adapters = {name: tensor.copy() for name, tensor in tensors.items()}

    def optimizer_state(self) -> OptimizerState:
        return OptimizerState(
            self._updates,
            {name: tensor.copy() for name, tensor in self._first.items()},
            {name: tensor.copy() for name, tensor in self._second.items()},
        )

    def load_optimizer_state(self, state: OptimizerState) -> None:
        assert state.exp_avg.keys() == state.exp_avg_sq.keys() == self._adapters.keys()
        self._updates = state.updates
        self._first = {name: tensor.copy() for name, tensor in state.exp_avg.items()}
        self._second = {name: tensor.copy() for name, tensor in state.exp_avg_sq.items()}

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        raise NotImplementedError

    def capture(self, batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
        raise NotImplementedError

    def start_decoding(self, max_tokens: int) -> Any:
        raise NotImplementedError

    def _total(self, goals: NDArray[np.float32]) -> float:
        mean = np.mean([float(np.mean(tensor)) for tensor in self._adapters.values()])
        return float(np.sum((np.float32(mean) - goals) ** 2))


def _goals(batch: Batch) -> NDArray[np.float32]:
    return batch.targets[batch.targets >= 0].astype(np.float32) / np.float32(MODEL.vocab_size)


def make_samples(count: int, seed: int) -> list[Sample]:
    generator = np.random.Generator(np.random.Philox(key=seed))
    samples = []
    for number in range(count):
        ids = generator.integers(0, MODEL.vocab_size, size=5 + number % 7).astype(np.int32)
        supervised = np.arange(len(ids)) >= 2
        samples.append(Sample(ids, supervised, f"d.jsonl:{number + 1}", Conversation((), (), "")))
    return samples


def make_prepared(
    run: RunDirectory,
    *,
    validation: bool = True,
    poison: Mapping[int, str] | None = None,
    circumstances: Circumstances = CIRCUMSTANCES,
    **settings: Any,
) -> Prepared:
    config = TrainConfig(
        **{
            "data": ("d.jsonl",),
            "model": "m",
            "out": str(run.path),
            "steps": 20,
            "batch_size": 2,
            "max_seq_len": 16,
            "rank": 2,
            "targets": ("q_proj", "down_proj"),
            "lr": 0.05,
            "parity": "off",
            "save_every": 5,
            **settings,
        }
    )
    plan = BatchPlan(
        make_samples(30, 1),
        batch_size=config.batch_size,
        grad_accum=config.grad_accum,
        seq_len=config.max_seq_len,
        packing=config.packing,
        seed=config.seed,
    )
    held_out = make_samples(9, 2) if validation else []
    batches = tuple(evaluation_batches(held_out, batch_size=2, seq_len=16))
    return Prepared(
        config=config,
        lora=config.lora,
        model=MODEL,
        engine=FakeEngine(config, poison),
        plan=plan,
        validation=batches,
        validation_samples=len(held_out),
        check_batch=batches[0] if batches else plan.micro_batches(1)[0],
        probe=None,
        total_steps=config.steps or 3 * plan.steps_per_epoch,
        eval_every=config.eval_every or 4,
        save_every=config.save_every or plan.steps_per_epoch,
        probe_every=50,
        circumstances=circumstances,
        counts={"samples": 30},
        notes=(),
        eos_token_ids=(7, 3),
    )


def newest(run: RunDirectory) -> Snapshot | None:
    return next((found for found in snapshot.usable(run.checkpoints) if isinstance(found, Snapshot)), None)


def no_words() -> list[Any]:
    return []


def attempt(
    run: RunDirectory, prepared: Prepared, poll: Callable[[], Sequence[Any]] = no_words
) -> Generator[Event, None, None]:
    """Trains from the newest checkpoint on."""
    return train(prepared, run, attempt=1, resume=newest(run), poll=poll)


@contextmanager
def new_run(path: Path) -> Iterator[RunDirectory]:
    run = directory.run_at(str(path))
    with directory.begin(run, TrainConfig(data=("d.jsonl",), model="m", out=str(path))):
        yield run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with new_run(tmp_path / "run") as begun:
        yield begun


@pytest.fixture
def fake() -> Any:
    """The helpers above, for test modules (which cannot import a conftest by name)."""
    return FakeHelpers()


@dataclasses.dataclass(frozen=True)
class FakeHelpers:
    prepared: Callable[..., Prepared] = make_prepared
    attempt: Callable[..., Generator[Event, None, None]] = attempt
    newest: Callable[[RunDirectory], Snapshot | None] = newest
    new_run: Callable[..., Any] = new_run
