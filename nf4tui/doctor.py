"""What this machine can run: facts, each with a verdict. Only CPU training is needed; the rest may warn.

Each check imports what it is about, so that a broken package is named instead of breaking the others.
"""

import importlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nf4tui import __version__
from nf4tui.config import terminal_facts, terminal_is_dumb, thread_limit, user_settings_path
from nf4tui.errors import CannotRunError, Nf4tuiError

OK, WARN, FAIL = "ok", "warn", "fail"
_NEEDED = ("numpy", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "cyclopts", "rich", "textual")
_LOW_MEMORY = (
    2 * 2**30
)  # bytes: the 0.5B model's quantised weights, embedding and activations need about this


@dataclass(frozen=True, slots=True)
class Check:
    """level: ok, warn or fail."""

    name: str
    level: str
    text: str


def checks() -> Iterator[Check]:
    """All checks, one after the other. What a check does not expect becomes its failure."""
    for name, check in _CHECKS:
        try:
            level, text = check()
        except Exception as error:
            # A broken package may raise anything; the other checks still have something to say.
            level, text = FAIL, f"{type(error).__name__}: {error}"
        yield Check(name, level, text)


def _python() -> tuple[str, str]:
    text = f"{platform.python_version()} on {platform.platform()}, nf4tui {__version__}"
    return (OK if sys.version_info >= (3, 11) else FAIL), text


def _packages() -> tuple[str, str]:
    found = []
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return FAIL, f"{name} cannot be imported ({error}); install nf4tui again"
        found.append(f"{name} {metadata.version(name)}")
    return OK, ", ".join(found)


def _processor() -> tuple[str, str]:
    import numpy

    from nf4tui.training.circumstances import processor, threads

    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    limit = "" if thread_limit() is None else ", limited by the environment"
    return OK, f"{processor()}; {blas['name']} {blas['version']} with {threads()} threads{limit}"


def _memory() -> tuple[str, str]:
    pages = {name: os.sysconf(name) for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")}
    total, free = (count * os.sysconf("SC_PAGE_SIZE") for count in pages.values())
    available = _available() or free
    level = OK if available >= _LOW_MEMORY else WARN
    return level, f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB available"


def _available() -> int | None:
    """What Linux says can be had without swapping, in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return sizes[0] * 1024 if sizes else None


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(".").free
    return (OK if free >= 2**30 else WARN), f"{free / 2**30:.1f} GiB free here"


def _terminal() -> tuple[str, str]:
    from rich.console import Console

    facts = terminal_facts()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return OK, "not a terminal: train writes plain lines"
    size = shutil.get_terminal_size()
    colours = Console().color_system or "no"
    text = f"TERM={facts['TERM'] or 'unset'}, {size.columns}x{size.lines}, {colours} colours"
    if terminal_is_dumb():
        return WARN, f"{text}; the dashboard needs another TERM, train writes plain lines"
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return (OK, text) if utf8 else (WARN, f"{text}; the encoding is {sys.stdout.encoding}, not UTF-8")


def _gpu() -> tuple[str, str]:
    """What the CUDA engine would run on, or what stands in its way."""
    from nf4tui.gpu import find_gpu

    try:
        gpu = find_gpu()
    except CannotRunError as error:
        return WARN, f"{error}; training runs on the CPU"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numba", "numba-cuda"))
    return OK, f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}; {versions}"


def _hub_cache() -> tuple[str, str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from nf4tui.models.default_model import cached_models

    names = cached_models()
    return OK, f"{HF_HUB_CACHE}: {', '.join(names) if names else 'no Qwen2 models'}"


def _default_model() -> tuple[str, str]:
    from nf4tui.models.default_model import model_of_user_settings

    path = user_settings_path()
    try:
        model = model_of_user_settings(path)
    except Nf4tuiError as error:
        return WARN, str(error)
    return OK, f"none (it would be `model` in {path})" if model is None else f"{model} ({path})"


def _training() -> tuple[str, str]:
    """One step of a tiny random model, loaded from disk as any model is."""
    import numpy as np

    from nf4tui.data.batches import make_batch
    from nf4tui.data.conversation import Conversation
    from nf4tui.data.samples import Sample
    from nf4tui.engine import Update
    from nf4tui.engines import create_engine
    from nf4tui.lora import LoraConfig
    from nf4tui.models.load import load_model
    from nf4tui.models.qwen2 import Qwen2Config
    from nf4tui.models.random_checkpoint import write_random_checkpoint

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    ids = np.arange(32, dtype=np.int32)
    batch = make_batch([Sample(ids, ids > 0, "", Conversation(()))], [(0,)], 1, len(ids))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nf4tui-doctor-") as folder:
        write_random_checkpoint(Path(folder), config, seed=0)
        engine = create_engine("cpu", load_model(Path(folder)), LoraConfig(rank=4, alpha=8.0), seed=0)
    result = engine.step([batch], Update(step=1, lr=1e-3))
    milliseconds = 1e3 * (time.perf_counter() - began)
    level = OK if result.nonfinite == 0 else FAIL
    return level, f"one step of a tiny random model: loss {result.loss:.4f}, {milliseconds:.0f} ms"


_CHECKS: tuple[tuple[str, Callable[[], tuple[str, str]]], ...] = (
    ("python", _python),
    ("packages", _packages),
    ("processor", _processor),
    ("memory", _memory),
    ("disk", _disk),
    ("terminal", _terminal),
    ("gpu", _gpu),
    ("hub cache", _hub_cache),
    ("default model", _default_model),
    ("cpu training", _training),
)
