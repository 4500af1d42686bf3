"""`nf4tui verify`: an engine against a recorded oracle (--case), or the GPU against the reference (--model)."""

import json
import math
from typing import TYPE_CHECKING

from nf4tui.errors import CannotRunError, InputError
from nf4tui.user_path import user_path

if TYPE_CHECKING:
    from nf4tui.parity.case_check import Group

GREEN, RED = 0, 1


def run(*, case: str | None, model: str | None, device: str, as_json: bool) -> int:
    """Prints each group's worst relL2 against its limit; returns 0 if all hold, else 1.

    Raises InputError for a malformed case or contradicting flags, CannotRunError without a GPU where one is
    needed.
    """
    if (case is None) == (model is None):
        raise InputError("verify needs --case DIRECTORY (a recorded oracle) or --model, one of them")
    if device not in ("auto", "cpu", "cuda", "sim"):
        raise InputError(f"--device {device}: must be one of auto, cpu, cuda, sim")
    if device in ("cuda", "sim"):
        raise CannotRunError(
            f"--device {device}: this version has no CUDA engine yet; --case runs with --device cpu"
        )
    if case is None:
        if device == "cpu":
            raise InputError(
                "verify --model with --device cpu would compare the reference with itself; use --case for the CPU"
            )
        raise CannotRunError(
            "verify --model needs an NVIDIA GPU and the CUDA engine, which this version lacks"
        )
    from nf4tui.parity.case_check import check_case

    groups = check_case(user_path(case))
    if as_json:
        print(json.dumps(_as_object(groups)))
    else:
        _print_table(groups)
    return GREEN if all(group.ok for group in groups) else RED


def _as_object(groups: list["Group"]) -> dict[str, object]:
    return {
        "groups": {
            group.name: {
                # JSON has no infinity or NaN: null, and ok is false.
                "rel_l2": group.comparison.rel_l2 if math.isfinite(group.comparison.rel_l2) else None,
                "limit": group.comparison.limit,
                "ok": group.ok,
                "comparisons": group.tensors,
                "worst": group.worst,
            }
            for group in groups
        },
        "ok": all(group.ok for group in groups),
    }


def _print_table(groups: list["Group"]) -> None:
    width = max(len(group.name) for group in groups)
    for group in groups:
        error, limit = group.comparison.rel_l2, group.comparison.limit
        exact = "equal" if group.ok else "NOT EQUAL"
        shown = exact if limit == 0 else f"relL2 {error:.2e}  limit {limit:.0e}"
        verdict = "ok " if group.ok else "RED"
        print(
            f"{verdict}  {group.name:{width}}  {shown:30}  {group.tensors:3d} compared, worst {group.worst}"
        )
