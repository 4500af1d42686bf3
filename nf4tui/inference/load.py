"""A model directory and perhaps an adapter, as an engine with its tokenizer: what eval and generate run on."""

from dataclasses import dataclass

from nf4tui.data.tokenizer import ChatTokenizer, check_vocabulary, load_tokenizer
from nf4tui.engine import Engine
from nf4tui.engines import choose_device, create_engine
from nf4tui.models.adapter import check_base, read_adapter
from nf4tui.models.hub import resolve_model
from nf4tui.models.load import fingerprint, load_model
from nf4tui.models.qwen2 import read_config
from nf4tui.user_path import user_path


@dataclass(frozen=True, slots=True)
class Loaded:
    """window: the most tokens that the model was made for. base: the same weights without the adapter; the
    engine itself where there is no adapter."""

    engine: Engine
    base: Engine
    tokenizer: ChatTokenizer
    window: int


def load(model: str, adapter: str | None, device: str) -> Loaded:
    """The engine for `model` (a directory or hub id), with `adapter` or as the base model alone.

    Raises InputError for what is wrong with either, CannotRunError where the device is not there.
    """
    chosen = choose_device(device)
    directory = resolve_model(model)
    tokenizer = load_tokenizer(directory)
    config = read_config(directory)
    check_vocabulary(tokenizer, config.vocab_size)
    lora, tensors = (None, None) if adapter is None else read_adapter(user_path(adapter), config)
    weights = load_model(directory)
    if adapter is not None:
        check_base(user_path(adapter), fingerprint(weights))
    engine = create_engine(chosen, weights, lora, seed=0, adapters=tensors)
    base = engine if lora is None else create_engine(chosen, weights, None, seed=0)
    return Loaded(engine, base, tokenizer, config.max_position_embeddings)
