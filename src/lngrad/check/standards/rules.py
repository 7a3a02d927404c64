"""Precision standards: by which rule a result is right. Constants as published by TTK and opbase; `exact` is ours.

A standard has two halves. `share` says of every element how much of its tolerance is used, for the map, the worst
elements and the share that is off. `judge` says from the sums over all elements which rules hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lngrad.core.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.testing import error_share

FAR_ULP = 32
MAP_ROWS, MAP_COLUMNS = 32, 64
MAX_WORST = 8
HISTOGRAM = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 4096.0, 65536.0, math.inf)  # in ULP; upper edges
_BITS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}


def ulps(error: Any, golden: Any, dtype: str) -> Any:
    """Errors in units of the last place of the golden in its dtype."""
    digits, least = _BITS[dtype]
    _, exponent = np.frexp(np.where(np.isfinite(golden), golden, 0.0))
    unit = np.ldexp(1.0, np.maximum(exponent - digits, least))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / unit)


@dataclass
class Sums:
    """Sums over the elements of one output, as a matrix of `rows` × `columns`. Infinite errors stay infinite."""

    rows: int
    columns: int
    count: int = 0
    off: int = 0
    worst_share: float = 0.0
    worst_error: float = 0.0
    worst_ulp: float = 0.0
    worst_far: float = 0.0  # largest error among those of more than 32 ULP
    relative: float = 0.0
    worst_relative: float = 0.0
    normal: int = 0  # elements outside the small-value domain
    normal_relative: float = 0.0
    mare: float = 0.0
    small_wrong: int = 0
    squares: float = 0.0
    dot: float = 0.0
    got_squares: float = 0.0
    golden_squares: float = 0.0
    histogram: list[int] = field(default_factory=lambda: [0] * len(HISTOGRAM))
    worst: list[tuple[float, int, int, float, float]] = field(default_factory=list)  # share, row, column, golden, got
    map: Any = None

    def __post_init__(self) -> None:
        self.map = np.zeros((max(1, min(MAP_ROWS, self.rows)), max(1, min(MAP_COLUMNS, self.columns))))

    def add(
        self, got: Any, golden: Any, share: Any, error: Any, dtype: str, small: tuple[float, float], start: int
    ) -> None:
        """Add rows from `start` on; all arrays (rows, columns) in float64."""
        if not got.size:
            return
        in_ulp = ulps(error, golden, dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(np.where(np.isfinite(golden), golden, 0.0))
            relative = np.where(error == 0, 0.0, error / (size + 1e-7))
            finite = np.where(np.isfinite(got), got, 0.0)
            self.squares += float(np.sum(np.square(error)))
        self.count += got.size
        self.off += int(np.count_nonzero(share > 1))
        self.worst_share = max(self.worst_share, float(share.max()))
        self.worst_error = max(self.worst_error, float(error.max()))
        self.worst_ulp = max(self.worst_ulp, float(in_ulp.max()))
        self.worst_far = max(self.worst_far, float(np.max(error, initial=0.0, where=in_ulp > FAR_ULP)))
        self.relative += float(relative.sum())
        self.worst_relative = max(self.worst_relative, float(relative.max()))
        outside = size >= small[0]
        self.normal += int(np.count_nonzero(outside))
        self.normal_relative += float(np.sum(relative, where=outside))
        self.mare = max(self.mare, float(np.max(relative, initial=0.0, where=outside)))
        self.small_wrong += int(np.count_nonzero(~outside & (error > small[1])))
        self.dot += float(np.vdot(finite, np.where(np.isfinite(golden), golden, 0.0)))
        self.got_squares += float(np.vdot(finite, finite))
        self.golden_squares += float(np.vdot(size, size))
        places = np.searchsorted(HISTOGRAM, in_ulp.reshape(-1), side="left")
        for place, number in enumerate(np.bincount(places, minlength=len(HISTOGRAM))):
            self.histogram[place] += int(number)
        self._keep_worst(got, golden, share, start)
        self._draw(share, start)

    def _keep_worst(self, got: Any, golden: Any, share: Any, start: int) -> None:
        flat = share.reshape(-1)
        number = min(MAX_WORST, flat.size)
        for at in np.argpartition(flat, -number)[-number:]:
            row, column = divmod(int(at), self.columns)
            found = (float(flat[at]), start + row, column, float(golden[row, column]), float(got[row, column]))
            if found[0] > 0:
                self.worst.append(found)
        self.worst = sorted(self.worst, key=lambda entry: (-entry[0], entry[1], entry[2]))[:MAX_WORST]

    def _draw(self, share: Any, start: int) -> None:
        """The largest share of every cell of the map."""
        height, width = self.map.shape
        rows = (np.arange(start, start + len(share)) * height) // self.rows
        columns = (np.arange(self.columns) * width) // self.columns
        firsts = np.flatnonzero(np.diff(columns, prepend=-1))
        row_firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        cells = np.maximum.reduceat(np.maximum.reduceat(share, firsts, axis=1), row_firsts, axis=0)
        np.maximum.at(self.map, rows[row_firsts], cells)

    @property
    def part_off(self) -> float:
        return self.off / self.count if self.count else 0.0

    @property
    def mean_relative(self) -> float:
        return self.relative / self.count if self.count else 0.0

    @property
    def mere(self) -> float:
        return self.normal_relative / self.normal if self.normal else 0.0

    @property
    def rmse(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def golden_rms(self) -> float:
        return math.sqrt(self.golden_squares / self.count) if self.count else 0.0

    @property
    def one_minus_cosine(self) -> float:
        if self.golden_squares == 0 or self.got_squares == 0:
            return 0.0 if self.golden_squares == self.got_squares else 1.0
        lengths = math.sqrt(self.got_squares) * math.sqrt(self.golden_squares)
        return 1 - self.dot / lengths if math.isfinite(self.squares) else 1.0


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
