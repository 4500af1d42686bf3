"""Which file of a model directory holds which tensor: model.safetensors, or the shards of its index.

The index is data from a stranger: a shard's name must be a plain file name of this directory, and what it
resolves to must stay where the model is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nf4tui.errors import InputError
from nf4tui.models.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from nf4tui.quoting import quoted
from nf4tui.small_files import read_json_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LONGEST_NAME = 255  # bytes, of one file name on Linux
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.npz", "*.npy")  # NumPy pickles arrays of objects


def first_ten(names: list[str]) -> str:
    """`a, b, c` of at most ten names, then how many more there are."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(name if len(name) <= 300 else quoted(name) for name in names[:10]) + more


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model directory. `where`: the file to name in messages about the whole."""

    where: Path
    files: Mapping[str, SafetensorsFile]  # by tensor name

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def info(self, name: str) -> TensorInfo:
        """dtype, shape and place of a tensor."""
        return self.files[name].tensors[name]

    def path(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.files[name].path

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """A tensor, or some rows of it; see SafetensorsFile.read."""
        return self.files[name].read(name, rows)


def open_checkpoint(directory: Path) -> Checkpoint:
    """Opens model.safetensors, or every shard of the index. Raises InputError."""
    index, single = directory / INDEX, directory / SINGLE
    if index.exists():
        if single.exists():
            raise InputError(
                f"{directory}: holds both {SINGLE} and {INDEX}; remove the one that is not meant"
            )
        return _open_sharded(directory, index)
    if single.exists() or single.is_symlink():
        file = open_safetensors(file_inside(directory, SINGLE))
        return Checkpoint(file.path, dict.fromkeys(file.tensors, file))
    if any(next(directory.glob(pattern), None) for pattern in _PICKLES):
        raise InputError(
            f"{directory}: only pickled weights (.bin, .pt, .npz), which can run code when opened and are refused; "
            "convert them with transformers' save_pretrained(safe_serialization=True)"
        )
    raise InputError(f"{directory}: no {SINGLE} and no {INDEX}")


def file_inside(directory: Path, name: str, where: Path | None = None) -> Path:
    """The path of a model's file. Raises InputError, naming `where`, if it is missing or a link to elsewhere.
    Hub caches link each file to ../../blobs/..., so a link may leave the directory, but not its cache."""
    path = directory / name
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"{where or path}: the file {quoted(name)} is missing or cannot be followed"
        ) from error
    home = directory.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise InputError(f"{path}: a link that leaves the model directory; put the file itself there")
    return path


def _open_sharded(directory: Path, index: Path) -> Checkpoint:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: weight_map must be a non-empty object of tensor name to file name")
    shards: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        plain = (
            isinstance(name, str)
            and name.endswith(".safetensors")
            and len(name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME
            and not set(name) & {"/", "\\", "\0"}
        )
        if not plain:
            raise InputError(
                f"{index}: weight_map[{quoted(tensor)}] is {quoted(name)}: "
                "must be a plain file name in this directory that ends in .safetensors"
            )
        if name not in shards:
            if not (directory / name).exists():
                raise InputError(f"{index}: the shard {quoted(name)} is missing; download it again")
            shards[name] = open_safetensors(file_inside(directory, name, index))
    problems = [
        f"{tensor} (not in {name})"
        for tensor, name in weight_map.items()
        if tensor not in shards[name].tensors
    ]
    if problems:
        raise InputError(f"{index}: tensors are not in the shard that the index names: {first_ten(problems)}")
    problems = [
        f"{tensor} (in {name})"
        for name, shard in shards.items()
        for tensor in shard.tensors
        if weight_map.get(tensor) != name
    ]
    if problems:
        raise InputError(
            f"{index}: shards hold tensors that the index does not place there: {first_ten(problems)}"
        )
    return Checkpoint(index, {tensor: shards[name] for tensor, name in weight_map.items()})
