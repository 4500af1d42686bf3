"""Which model a command takes when --model is left out."""

import tomllib
from pathlib import Path

from nf4tui.errors import InputError

HINT = "name one with --model DIRECTORY or --model ORGANISATION/NAME (a Hugging Face hub id)"


def sample_model_of(file: str) -> Path | None:
    """The sample model, if `file` lies under a folder sample_data/ that holds one."""
    try:
        parents = Path(file).expanduser().resolve().parents
    except (RuntimeError, ValueError):  # an unknown user, a loop of links, NUL: opening it will say so
        return None
    for parent in parents:
        model = parent / "model"
        if parent.name == "sample_data" and any(
            (model / name).is_file() for name in ("config.json", "tokenizer.json")
        ):
            return model
    return None


def model_of_user_settings(path: Path) -> str | None:
    """`model` in the user's configuration file; None where there is no such file or key.
    Raises InputError if the file is not valid."""
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(table) - {"model"})
    if unknown:
        raise InputError(f"{path}: there is no setting {unknown[0]!r}; the file may hold `model`")
    model = table.get("model")
    if model is not None and not isinstance(model, str):
        raise InputError(f"{path}: model = {model!r}: must be text")
    return model


def cached_models() -> list[str]:
    """Hub ids of the Qwen2 models in the local hub cache."""
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 - slow to import, seldom needed
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(
        repo.repo_id
        for repo in repos
        if repo.repo_type == "model" and any(_is_qwen2(revision.snapshot_path) for revision in repo.revisions)
    )


def _is_qwen2(snapshot: Path) -> bool:
    try:
        return '"qwen2"' in (snapshot / "config.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
