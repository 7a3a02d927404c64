"""Precision standards: by which rule a result is right. Constants as published by TTK and opbase; `exact` is ours.

A standard has two halves. `share` says of every element how much of its tolerance is used, for the map, the worst
elements and the share that is off. `judge` says from the sums over all elements which rules hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lngrad.check.standards.sums import Sums
from lngrad.core.dtypes import numpy_dtype
from lngrad.testing import UNIT_ROUNDOFF, error_share


class Rule(NamedTuple):
    """One rule of a standard: holds if measured <= limit."""

    name: str
    measured: float
    limit: float

    @property
    def holds(self) -> bool:
        return bool(self.measured <= self.limit)


@dataclass(frozen=True)
class Tolerances:
    """What a case brings along: rtol and the share of elements that may be off, and atol; None for the standard's own."""

    rtol: float | None = None
    part: float | None = None
    atol: float | None = None
    level: str = "L1"


@dataclass(frozen=True)
class Standard:
    """share: (got, golden, truth, scale, dtype, tolerances) → array; golden is truth rounded to dtype, both in float64.
    judge: (sums, dtype, tolerances, sums of the third-party result or None) → rules."""

    share: Callable[..., Any]
    judge: Callable[[Sums, str, Tolerances, Sums | None], list[Rule]]
    meaning: str


# rtol, atol, limit of the largest error. float64 is not in the published table: as far from float32 as float32 is from
# half, so that a float64 kernel with a float32 step in it fails.
_MIXED = {
    "float16": (2.0**-9, 2.0**-9, 1e-1),
    "bfloat16": (2.0**-6, 2.0**-6, 1.0),
    "float32": (2.0**-10, 2.0**-16, 1e-2),
    "float64": (2.0**-30, 2.0**-36, 1e-6),
}
_STAT = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-13, "float64": 2.0**-36}
_CLOSE = {"float16": 1e-3, "bfloat16": 1e-3, "float32": 1e-4, "float64": 1e-10}
CLOSE_ATOL = 1e-8
COSINE = 0.01
LEVELS = {"L0": (10.0, 2.0, 2.0), "L1": (5.0, 1.5, 1.5), "L2": (2.0, 1.2, 1.2)}  # ratios of MARE, MERE, RMSE
# Below the first, relative errors say nothing, and errors above the second are counted.
SMALL = {
    "float16": (2.0**-11, 2.0**-16),
    "bfloat16": (2.0**-8, 2.0**-16),
    "float32": (2.0**-14, 2.0**-30),
    "float64": (2.0**-40, 2.0**-60),
}
SMALL_RATIO = 2.0


def error_of(got: Any, golden: Any) -> Any:
    """|got - golden|, 0 for NaN on both sides and for equal infinities, infinite where only one is finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - golden)
    same = (got == golden) | (np.isnan(got) & np.isnan(golden))
    return np.where(same, 0.0, np.nan_to_num(error, nan=np.inf))


def _within(got: Any, golden: Any, rtol: float, atol: float) -> Any:
    with np.errstate(invalid="ignore"):
        bound = atol + rtol * np.abs(np.where(np.isfinite(golden), golden, 0.0))
        error = error_of(got, golden)
        return np.where(error == 0, 0.0, error / bound) if atol or rtol else np.where(error == 0, 0.0, np.inf)


def _mixed_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    rtol, atol, _ = _MIXED[dtype]
    return _within(got, golden, rtol, atol)


def _mixed(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    _, _, limit = _MIXED[dtype]
    return [
        Rule("share of elements outside atol + rtol·|golden|", sums.part_off, 0.01),
        Rule("largest error where it is more than 32 ULP", sums.worst_far, limit),
    ]


def _stat_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    threshold = 10 * _STAT[dtype]
    return _within(got, golden, threshold, 1e-7 * threshold)


def _stat(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    threshold = _STAT[dtype]
    return [
        Rule("MERE, the mean relative error", sums.mean_relative, np.nextafter(threshold, 0)),
        Rule("MARE, the largest relative error", sums.worst_relative, np.nextafter(10 * threshold, 0)),
    ]


def _close_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    rtol = _CLOSE[dtype] if tolerances.rtol is None else tolerances.rtol
    return _within(got, golden, rtol, CLOSE_ATOL if tolerances.atol is None else tolerances.atol)


def _close(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    part = _CLOSE[dtype] if tolerances.part is None else tolerances.part
    return [Rule("share of elements outside atol + rtol·|golden|", sums.part_off, part)]


def _cosine_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    finite = golden[np.isfinite(golden)]
    # Errors of this size in every element, and at right angles to the golden, reach 1 - cos = 0.01.
    size = np.sqrt(2 * COSINE) * np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    return _within(got, golden, 0.0, float(size) or np.finfo(np.float64).tiny)


def _cosine(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    return [Rule("1 - cosine of the angle to the golden", sums.one_minus_cosine, COSINE)]


def _binary_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    # Through float64 all NaNs are equal; the sign of zero is not.
    unlike = (got != golden) & ~(np.isnan(got) & np.isnan(golden)) | (np.signbit(got) != np.signbit(golden)) & (
        got == 0
    )
    return np.where(unlike, 2.0, 0.0)


def _binary(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    return [Rule("elements whose bits differ", float(sums.off), 0.0)]


def _dual(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    if third is None:
        return []
    mare, mere, rmse = LEVELS[tolerances.level]
    # A third party that is exact would fail all others: its figures count as one rounding at least.
    unit = UNIT_ROUNDOFF[dtype]
    root = unit * max(sums.golden_rms, 2.0**-126)
    return [
        Rule(f"MARE over the third party's, {tolerances.level}", sums.mare / max(third.mare, unit), mare),
        Rule(f"MERE over the third party's, {tolerances.level}", sums.mere / max(third.mere, unit), mere),
        Rule(f"RMSE over the third party's, {tolerances.level}", sums.rmse / max(third.rmse, root), rmse),
        Rule("wrong small values over the third party's", sums.small_wrong / max(third.small_wrong, 1), SMALL_RATIO),
    ]


def _exact_share(got: Any, golden: Any, truth: Any, scale: Any, dtype: str, tolerances: Tolerances) -> Any:
    accumulator = "float64" if dtype == "float64" else "float32"
    with np.errstate(over="ignore"):
        result = got.astype(numpy_dtype(dtype))
    return error_share(result, truth, scale, accumulator)


def _exact(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[Rule]:
    return [Rule("largest error in tolerances of lngrad's table", sums.worst_share, 1.0)]


STANDARDS = {
    "mixed": Standard(_mixed_share, _mixed, "99 % within atol + rtol·|golden|, and none far off"),
    "stat": Standard(_stat_share, _stat, "mean and largest relative error"),
    "close": Standard(_close_share, _close, "numpy's isclose with a share that may be off"),
    "cosine": Standard(_cosine_share, _cosine, "the angle between result and golden"),
    "binary": Standard(_binary_share, _binary, "the same bits"),
    "dual": Standard(_mixed_share, _dual, "not much worse than a third party's result"),
    "exact": Standard(_exact_share, _exact, "one rounding, and what a float32 sum may lose: lngrad's own table"),
}
