"""A model's name to a local directory: a path as it is, or a Hugging Face hub id through the hub's cache."""

from pathlib import Path

from nf4tui.errors import InputError
from nf4tui.quoting import quoted

# Never pickles: weights are taken as safetensors only.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "merges.txt"]


def resolve_model(name: str) -> Path:
    """The directory of `name`: an existing directory, else the snapshot of a hub id, downloaded unless it is
    in the local cache (HF_HUB_OFFLINE=1: only from there). Raises InputError saying what to do."""
    if not name:
        raise InputError("the model's name is empty; name a Hugging Face directory or a hub id")
    try:
        path = Path(name).expanduser()
        found, is_directory = path.exists(), path.is_dir()
    except RuntimeError as error:
        raise InputError(f"{name!r}: there is no such user's home directory") from error
    except OSError as error:
        raise InputError(f"{quoted(name)}: cannot be looked at: {error.strerror}") from error
    if is_directory:
        return path
    if found:
        raise InputError(f"{name}: a file; --model takes a Hugging Face directory or a hub id")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name!r}: no such directory, and not a hub id (organisation/name)")
    from huggingface_hub import errors as hub  # noqa: PLC0415
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, seldom needed

    try:
        return Path(snapshot_download(name, allow_patterns=_PATTERNS))
    except hub.HFValidationError as error:
        raise InputError(
            f"{name!r}: no such directory, and not a valid hub id (organisation/name)"
        ) from error
    except hub.GatedRepoError as error:
        raise InputError(
            f"{name}: access to this model must be granted on the hub; then log in with `hf auth login`"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise InputError(
            f"{name}: no such directory, and no such public model on the hub (a private one needs `hf auth login`)"
        ) from error
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        raise InputError(
            f"{name}: not a directory and not in the local hub cache, and the hub cannot be reached; "
            "name a directory, or go online once to download it"
        ) from error
    # HTTPError, of whichever client the library uses, covers proxies and connections that break off.
    except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # not declared as exported
        reason = str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
        raise InputError(f"{name}: could not be fetched from the hub: {reason}") from error
