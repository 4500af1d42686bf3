"""One tensor of the GPU against the truth, by the error that legal bfloat16 arithmetic makes of it.

Every comparison is written `ok = error <= limit`, so that NaN fails.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nf4tui.parity.compare import rel_l2
from nf4tui.parity.contract import Contract

Array = NDArray[Any]
ULP = 2.0**-24
# Statistics that kernels keep in float32 and nothing rounds in between, and how many terms their sums have.
FP32 = (".rstd", ".lse")


@dataclass(frozen=True, slots=True)
class Verdict:
    """error: relL2(G, R). legal: relL2(E, R). broken: the rules that do not hold, in words; none: green."""

    tap: str
    error: float
    legal: float
    limit: float
    broken: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def ratio(self) -> float:
        """e_G / e_E: about 1 is right. Against the limit where legal arithmetic makes no error to speak of."""
        if self.legal > self.limit / 100:
            return self.error / self.legal
        return self.error / self.limit if self.limit > 0 else (0.0 if self.error == 0 else math.inf)


def judge_op(contract: Contract, tap: str, found: Array, exact: Array, legal: Array) -> Verdict:
    """A tensor whose op was fed the GPU's own input: rules 1 to 3, 7 and 8 of the contract. found, exact, legal:
    [rows, ...] of one shape."""
    rules = contract.op
    error, cost = rel_l2(found, exact), rel_l2(legal, exact)
    if tap == "hidden.0":
        return Verdict(tap, error, cost, 0.0, _held(np.array_equal(found, legal), "rows are not the table's"))
    if tap.endswith(FP32) or tap == "loss":
        limit = rules.fp32_factor * math.sqrt(_terms(tap, found)) * ULP
        return Verdict(tap, error, cost, limit, _held(error <= limit, "error"))
    limit = rules.factor * cost + rules.floor
    broken = _held(error <= limit, "error")
    if ".grad_lora_" not in tap:
        width = max(1, exact[0].size) if len(exact) else 1
        row_limit = (
            rules.row_factor * _worst_row(legal, exact) + rules.row_flip / math.sqrt(width) + rules.floor
        )
        broken += _held(_worst_row(found, exact) <= row_limit, "worst row")
    allowed = max(2 * cost / math.sqrt(exact.size or 1), 2 * abs(_gain(legal, exact) - 1), rules.gain_floor)
    broken += _held(abs(_gain(found, exact) - 1) <= rules.gain_factor * allowed, "gain")
    return Verdict(tap, error, cost, limit, broken)


def judge_free(tap: str, factor: float, floor: float, found: Array, exact: Array, legal: Array) -> Verdict:
    """A tensor that was computed from the token ids on."""
    error, cost = rel_l2(found, exact), rel_l2(legal, exact)
    limit = factor * cost + floor
    return Verdict(tap, error, cost, limit, _held(error <= limit, "error"))


def judge_argmax(contract: Contract, found: Array, exact: Array, legal: Array) -> Verdict:
    """The most likely tokens [rows, V] where they are certain. error: the share of those that differ."""
    top = np.sort(exact, axis=-1)[:, -2:]
    spread = contract.free.margin * rel_l2(legal, exact) * np.sqrt(np.square(exact).mean(axis=-1))
    certain = top[:, 1] - top[:, 0] > spread
    wrong = (found.argmax(axis=-1) != exact.argmax(axis=-1)) & certain
    share = float(wrong.mean()) if len(wrong) else 0.0
    return Verdict("logits.argmax", share, 0.0, 0.0, _held(share <= 0, f"{int(wrong.sum())} tokens differ"))


def judge_loss(contract: Contract, tap: str, found: float, exact: float) -> Verdict:
    """A mean loss; error in natural log units."""
    error, limit = abs(found - exact), contract.free.loss
    return Verdict(tap, error, 0.0, limit, _held(error <= limit, "error"))


def judge_fp32(tap: str, factor: float, terms: float, found: Array, exact: Array) -> Verdict:
    """What is computed in float32 throughout."""
    error, limit = rel_l2(found, exact), factor * math.sqrt(terms) * ULP
    return Verdict(tap, error, 0.0, limit, _held(error <= limit, "error"))


def judge_equal(tap: str, equal: bool) -> Verdict:
    """What must be the same bits."""
    return Verdict(tap, 0.0 if equal else math.inf, 0.0, 0.0, _held(equal, "bits differ"))


def _held(ok: bool, what: str) -> tuple[str, ...]:
    return () if ok else (what,)


def _terms(tap: str, found: Array) -> float:
    """How many values a statistic sums, at most; at least 64, since its functions are worth a few ulp."""
    return max(64.0, 2.0**14 if tap == "loss" else float(len(found)) + 1024)


def _worst_row(x: Array, exact: Array) -> float:
    """The largest relL2 of a row. A row of zeros is matched by zeros only."""
    if len(exact) == 0:
        return 0.0
    distance = np.sqrt(_squares(np.asarray(x, np.float64) - exact))
    size = np.sqrt(_squares(np.asarray(exact, np.float64)))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(distance == 0, 0.0, distance / size)
    return float(errors.max())  # max keeps NaN


def _squares(x: Array) -> Array:
    flat = x.reshape(len(x), -1)
    squares: Array = np.einsum("ij,ij->i", flat, flat)
    return squares


def _gain(x: Array, exact: Array) -> float:
    """<x, exact> / <exact, exact>; 1 where exact is 0, which the error judges."""
    flat, right = np.asarray(x, np.float64).reshape(-1), np.asarray(exact, np.float64).reshape(-1)
    size = float(right @ right)
    return float(flat @ right) / size if size > 0 else 1.0
