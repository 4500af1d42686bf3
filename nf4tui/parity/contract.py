"""The thresholds of the parity contract, from contract.toml, each of them checked to be there and to mean something."""

import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

VERSION = 1
LIMITS = (0.0, 100.0)  # between which every threshold lies


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRules:
    """Of an op that is fed the GPU's own input."""

    factor: float
    floor: float
    row_factor: float
    row_flip: float
    gain_factor: float
    gain_floor: float
    fp32_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRules:
    """Of what is computed from the token ids on."""

    layer_factor: float
    gradient_factor: float
    loss: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """Of AdamW."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """All sections. version: of the file's form."""

    version: int
    op: OpRules
    free: FreeRules
    update: UpdateRules


def read_contract(text: str | None = None) -> Contract:
    """The contract that nf4tui ships, or another one's TOML. Raises ValueError for a version that this code does not
    know, and for thresholds that are missing, unknown, or no positive number below 100."""
    if text is None:
        text = resources.files("nf4tui.parity").joinpath("contract.toml").read_text(encoding="utf-8")
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"contract: {error}") from error
    if raw.pop("version", None) != VERSION:
        raise ValueError(f"contract: only version {VERSION} is known")
    if set(raw) != {"op", "free", "update"}:
        raise ValueError(f"contract: sections {sorted(raw)}; op, free and update are needed")
    return Contract(
        version=VERSION,
        op=_section(OpRules, "op", raw["op"]),
        free=_section(FreeRules, "free", raw["free"]),
        update=_section(UpdateRules, "update", raw["update"]),
    )


def _section(kind: type[Any], name: str, raw: object) -> Any:
    wanted = [field.name for field in fields(kind)]
    if not isinstance(raw, dict) or sorted(raw) != sorted(wanted):
        raise ValueError(f"contract: [{name}] must hold {', '.join(wanted)}")
    for key, value in raw.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Written so that NaN is refused.
        if not (number and LIMITS[0] < value < LIMITS[1]):
            raise ValueError(f"contract: {name}.{key} = {value!r} is no threshold")
    return kind(**raw)
