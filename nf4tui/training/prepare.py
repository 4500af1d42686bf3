"""Everything that can refuse a run, before anything of it is written.

settings -> model directory -> tokenizer -> samples -> batch plan
         -> weights -> adapter to go on from -> engine -> Prepared
"""

import dataclasses
from pathlib import Path

import numpy as np

from nf4tui.config import TrainConfig, cache_directory
from nf4tui.data.batches import BatchPlan, evaluation_batches, split
from nf4tui.data.files import expand
from nf4tui.data.mixture import Mixture, check_weights
from nf4tui.data.overlap import Overlap, find_overlap
from nf4tui.data.report import DataReport
from nf4tui.data.samples import DataOptions, Dataset, Sample
from nf4tui.data.token_cache import TokenCache
from nf4tui.data.tokenizer import ChatTokenizer, check_vocabulary, load_tokenizer
from nf4tui.engine import Batch, Tensors
from nf4tui.engines import choose_device, create_engine
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.lora_init import initial_adapters
from nf4tui.models.adapter import check_base, read_adapter
from nf4tui.models.hub import resolve_model
from nf4tui.models.load import fingerprint, load_model
from nf4tui.models.qwen2 import Qwen2Config, read_config
from nf4tui.models.weights import ModelWeights
from nf4tui.reference.engine import ReferenceEngine
from nf4tui.runs.events import LogEvent
from nf4tui.training import circumstances
from nf4tui.training.checks import check_settings
from nf4tui.training.circumstances import Circumstances
from nf4tui.training.precision import MAX_PARAMETERS, PrecisionProbe, parameters, probe_batch
from nf4tui.training.prepared import Prepared
from nf4tui.user_path import user_path

DEFAULT_EPOCHS = 3
MOST_STEPS_UNSAVED = 500
DEFAULT_PROBE_EVERY = 50


def prepare(
    config: TrainConfig, explicit: frozenset[str] = frozenset(), checkpoint: Path | None = None
) -> Prepared:
    """Loads and checks all that a run needs. `explicit`: the settings that the user named. `checkpoint`: of a
    resumed run; its adapter stands for the one that the run began with, which may have changed or gone.

    Raises InputError for whatever is wrong with settings, data, model or adapter, CannotRunError where this
    machine has not the device or the memory.
    """
    check_settings(config)
    device = choose_device(config.device)
    model_dir = resolve_model(config.model)
    tokenizer = load_tokenizer(model_dir)
    model = read_config(model_dir)
    check_vocabulary(tokenizer, model.vocab_size)
    config = _with_window(config, model, explicit)
    adapter = _adapter_of(config, checkpoint)
    config, lora, adapters = _with_adapter(config, adapter, model, explicit)
    cache = TokenCache(cache_directory() / "tokens")
    data = _samples(config, tokenizer, cache)
    training, validation = data.training, data.validation
    plan = BatchPlan(
        training,
        batch_size=config.batch_size,
        grad_accum=config.grad_accum,
        seq_len=config.max_seq_len,
        packing=config.packing,
        seed=config.seed,
        mixture=data.mixture,
    )
    validation_batches = tuple(
        evaluation_batches(validation, batch_size=config.batch_size, seq_len=config.max_seq_len)
    )
    first_batch = plan.micro_batches(1)[0]
    weights = load_model(model_dir)
    base = fingerprint(weights)
    if adapter is not None:
        check_base(adapter, base)
    if adapters is None:
        adapters = initial_adapters(model, lora, config.seed)
    engine = create_engine(device, weights, lora, seed=config.seed, adapters=adapters)
    epoch = plan.steps_per_epoch
    cache.save()
    return Prepared(
        config=config,
        lora=lora,
        model=model,
        engine=engine,
        plan=plan,
        validation=validation_batches,
        validation_samples=len(validation),
        check_batch=validation_batches[0] if validation_batches else first_batch,
        probe=_probe(config, lora, weights, adapters, engine.device, first_batch),
        total_steps=config.steps or plan.steps_in(config.epochs or DEFAULT_EPOCHS),
        eval_every=config.eval_every or epoch,
        save_every=config.save_every or min(epoch, MOST_STEPS_UNSAVED),
        probe_every=config.parity_every or DEFAULT_PROBE_EVERY,
        circumstances=Circumstances(
            base=base,
            data=circumstances.fingerprint([*training, *validation]),
            device=engine.device,
            processor=circumstances.processor(),
            threads=circumstances.threads(),
            versions=circumstances.versions(),
        ),
        counts=_counts(data, plan),
        notes=_notes(config, model, engine.device, data, tokenizer),
        eos_token_ids=_stop_ids(data.report, tokenizer),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Data:
    """The samples of a run, and what is to be said about them."""

    training: list[Sample]
    validation: list[Sample]
    report: DataReport
    overlap: Overlap
    mixture: Mixture | None


def _with_window(config: TrainConfig, model: Qwen2Config, explicit: frozenset[str]) -> TrainConfig:
    """The window that was asked for must fit the model; the default one is made to."""
    longest = model.max_position_embeddings
    if config.max_seq_len <= longest:
        return config
    if "max_seq_len" in explicit:
        raise InputError(f"--max-seq-len {config.max_seq_len}: the model takes at most {longest} tokens")
    return dataclasses.replace(config, max_seq_len=longest)


def _adapter_of(config: TrainConfig, checkpoint: Path | None) -> Path | None:
    """The folder of the adapter to go on from."""
    if config.adapter is None:
        return None
    return user_path(config.adapter) if checkpoint is None else checkpoint


def _with_adapter(
    config: TrainConfig, adapter: Path | None, model: Qwen2Config, explicit: frozenset[str]
) -> tuple[TrainConfig, LoraConfig, Tensors | None]:
    """The adapter to go on from, whose modules, ranks and scalings the run takes over."""
    if adapter is None:
        return config, config.lora, None
    lora, tensors = read_adapter(adapter, model)
    settled = dataclasses.replace(
        config, rank=lora.rank, alpha=lora.alpha, rslora=lora.rslora, targets=lora.targets
    )
    for name in explicit & {"rank", "alpha", "rslora", "targets"}:
        asked, found = getattr(config, name), getattr(settled, name)
        if (sorted(asked) != sorted(found)) if name == "targets" else (asked != found):
            raise InputError(f"--{name} {asked}: the adapter {adapter} has {found}; leave the flag out")
    return settled, dataclasses.replace(lora, dropout=config.dropout), tensors


def _samples(config: TrainConfig, tokenizer: ChatTokenizer, cache: TokenCache) -> _Data:
    options = DataOptions(
        format=config.format,
        overlong=config.overlong,
        skip_bad=config.skip_bad,
        supervise=config.supervise,
        max_seq_len=config.max_seq_len,
    )
    data = cache.load_samples(config.data, tokenizer, options)
    training, validation = list(data.samples), []
    overlap = Overlap()
    if config.eval_data is not None:
        validation = list(cache.load_samples([config.eval_data], tokenizer, options).samples)
        overlap = find_overlap(training, validation)
    elif config.eval_split is not None:
        training, validation = split(data.samples, config.eval_split, config.seed)
    return _Data(training, validation, data.report, overlap, _mixture(config, data, training))


def _mixture(config: TrainConfig, data: Dataset, training: list[Sample]) -> Mixture | None:
    """The weights of --weights over the training samples of each DATA argument."""
    if config.weights is None:
        return None
    check_weights(config.weights, len(config.data))
    files = iter(data.report.files)
    sizes = [sum(next(files).samples for _ in expand([argument])) for argument in config.data]
    ends = np.cumsum(sizes)
    kept = {id(sample) for sample in training}
    counts = [0] * len(sizes)
    for place, sample in enumerate(data.samples):
        if id(sample) in kept:
            counts[int(np.searchsorted(ends, place, side="right"))] += 1
    return Mixture(counts, config.weights, config.seed)


def _probe(
    config: TrainConfig,
    lora: LoraConfig,
    weights: ModelWeights,
    adapters: Tensors,
    device: str,
    batch: Batch,
) -> PrecisionProbe | None:
    """The precision probe, for a model on the CPU that is small enough."""
    if config.parity == "off" or device != "cpu" or parameters(weights.config) > MAX_PARAMETERS:
        return None
    exact = ReferenceEngine(weights, lora, dtype=np.float64, adapters=adapters)
    return PrecisionProbe(exact, probe_batch(batch))


def _notes(
    config: TrainConfig, model: Qwen2Config, device: str, data: _Data, tokenizer: ChatTokenizer
) -> tuple[LogEvent, ...]:
    """The ends in use, what the data lost, and what is left out for its cost."""
    report, overlap = data.report, data.overlap
    losses = (
        (report.bad, "records cannot be used and are skipped"),
        (report.dropped, f"records are longer than --max-seq-len {config.max_seq_len} and are dropped"),
        (report.truncated, f"records are cut to --max-seq-len {config.max_seq_len} tokens"),
        (report.unsupervised, "records have nothing to learn from and are dropped"),
        (report.control_tokens, "records spell out a control token in their text; it is read as plain text"),
        (overlap.samples, "validation samples are also training samples: their loss is no test"),
    )
    ends = f"an answer ends with {tokenizer.form.end} (id {tokenizer.end_token_id})"
    if any(file.format == "text" for file in report.files):
        ends += f", a document with {tokenizer.document_end}"
    notes = [LogEvent(level="info", message=f"chat form {tokenizer.form.name}; {ends}")]
    notes += [LogEvent(level="warning", message=note) for note in tokenizer.notes]
    notes += [
        LogEvent(level="info", message=f"{file.path}: begins with a byte order mark, which is left out")
        for file in report.files
        if file.bom
    ]
    notes += [
        LogEvent(level="warning", message=f"{tally.count} {what}; the first: {tally.sources[0]}")
        for tally, what in losses
        if tally.count
    ]
    size = parameters(model)
    if config.parity != "off" and device == "cpu" and size > MAX_PARAMETERS:
        message = (
            f"no precision probe: the model has {size / 1e6:.0f} million parameters, and its float64 twin"
            f" runs along only up to {MAX_PARAMETERS / 1e6:.0f} million"
        )
        notes.append(LogEvent(level="info", message=message))
    return tuple(notes)


def _stop_ids(report: DataReport, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """What generation from the adapter stops at: the ends trained with first."""
    formats = {file.format for file in report.files}
    trained = [tokenizer.end_token_id] if formats - {"text"} else []
    if "text" in formats:
        trained.append(tokenizer.control_token_id(tokenizer.document_end))
    return tuple(dict.fromkeys([*trained, *tokenizer.stop_ids]))


def _counts(data: _Data, plan: BatchPlan) -> dict[str, int]:
    """What the start event says about the data."""
    report = data.report
    return {
        "records": report.records,
        "samples": len(data.training),
        "validation_samples": len(data.validation),
        "tokens": sum(len(sample.ids) for sample in data.training),
        "supervised_tokens": sum(int(sample.supervised.sum()) for sample in data.training),
        "padding_tokens": plan.padding_per_epoch,
        "bad": report.bad.count,
        "dropped": report.dropped.count,
        "truncated": report.truncated.count,
        "unsupervised": report.unsupervised.count,
        "control_tokens": report.control_tokens.count,
        "duplicates": report.duplicates.count,
        "overlap": data.overlap.samples.count,
    }
