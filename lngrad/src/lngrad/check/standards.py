"""Precision standards: by which rule a result is right. Constants as published by TTK and opbase; `exact` is ours.

A standard has two halves. `share` says of every element how much of its tolerance is used, for the map, the worst
elements and the share that is off. `judge` says from the sums over all elements which rules hold.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lngrad.check.result import RuleResult
from lngrad.support.bounded_cache import cached_property
from lngrad.support.dtypes import UNIT_ROUNDOFF, accumulator_for, bytes_of, numpy_dtype
from lngrad.testing import error_share

FAR_ULP = 32
MAP_ROWS, MAP_COLUMNS = 32, 64
MAX_WORST = 8
HISTOGRAM = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 4096.0, 65536.0, math.inf)  # in ULP; upper edges
_BITS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}


def ulps(error: Any, golden: Any, dtype: str) -> Any:
    """Errors in units of the last place of a finite golden in its dtype."""
    digits, least = _BITS[dtype]
    _, exponent = np.frexp(golden)
    unit = np.ldexp(1.0, np.maximum(exponent - digits, least))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / unit)


@dataclass(frozen=True)
class Tolerances:
    """What a case brings along: rtol and the share of elements that may be off, and atol; None for the standard's own."""

    rtol: float | None = None
    part: float | None = None
    atol: float | None = None
    level: str = "L1"


@dataclass(frozen=True)
class Compared:
    """Rows of an output beside what they should be: matrices in float64.

    Attributes:
        got: The result.
        golden: The truth, rounded to the output's dtype.
        truth, scale: As of lngrad.testing.error_share.
        dtype: Of the output.
        tolerances: Of the case.
    """

    got: Any
    golden: Any
    truth: Any
    scale: Any
    dtype: str
    tolerances: Tolerances

    @cached_property
    def error(self) -> Any:
        """|got - golden|, 0 for NaN on both sides and for equal infinities, infinite where only one is finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(self.got - self.golden)
        same = (self.got == self.golden) | (np.isnan(self.got) & np.isnan(self.golden))
        return np.where(same, 0.0, np.nan_to_num(error, nan=np.inf))

    def within(self, rtol: float, atol: float) -> Any:
        """How much of atol + rtol·|golden| each error uses."""
        with np.errstate(invalid="ignore"):
            bound = atol + rtol * np.abs(np.where(np.isfinite(self.golden), self.golden, 0.0))
            return np.where(self.error == 0, 0.0, self.error / bound if atol or rtol else np.inf)


class Sums:
    """Sums over the elements of one output, as a matrix of `rows` × `columns`. Infinite errors stay infinite.

    Attributes:
        total: Of all elements: count, off, relative, squares, dot, got_squares, golden_squares, small_wrong; of those outside
            the small-value domain: normal, normal_relative.
        most: The largest share, error, ulp, relative; far, the largest error among those of more than 32 ULP; and mare, the
            largest relative error outside the small-value domain.
        histogram, worst, map: As of OutputResult; worst is (share, row, column, golden, got).
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.total: dict[str, float] = defaultdict(float)
        self.most: dict[str, float] = defaultdict(float)
        self.histogram = np.zeros(len(HISTOGRAM), int)
        self.worst: list[tuple[float, int, int, float, float]] = []
        self.map = np.zeros((max(1, min(MAP_ROWS, rows)), max(1, min(MAP_COLUMNS, columns))))

    def add(self, compared: Compared, share: Any, start: int) -> None:
        """Add rows from `start` on."""
        error, golden = compared.error, np.where(np.isfinite(compared.golden), compared.golden, 0.0)
        in_ulp, (least, most_small) = ulps(error, golden, compared.dtype), SMALL[compared.dtype]
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(golden)
            relative = np.where(error == 0, 0.0, error / (size + 1e-7))
            finite, squares = np.where(np.isfinite(compared.got), compared.got, 0.0), np.sum(np.square(error))
        outside = size >= least
        for name, value in {
            "count": size.size, "off": np.count_nonzero(share > 1), "relative": relative.sum(), "squares": squares,
            "normal": np.count_nonzero(outside), "normal_relative": np.sum(relative, where=outside),
            "small_wrong": np.count_nonzero(~outside & (error > most_small)), "dot": np.vdot(finite, golden),
            "got_squares": np.vdot(finite, finite), "golden_squares": np.vdot(size, size),
        }.items():  # fmt: skip
            self.total[name] += float(value)
        for name, value in {
            "share": share.max(), "error": error.max(), "ulp": in_ulp.max(), "relative": relative.max(),
            "far": np.max(error, initial=0.0, where=in_ulp > FAR_ULP), "mare": np.max(relative, initial=0.0, where=outside),
        }.items():  # fmt: skip
            self.most[name] = max(self.most[name], float(value))
        places = np.searchsorted(HISTOGRAM, in_ulp.reshape(-1), side="left")
        self.histogram += np.bincount(places, minlength=len(HISTOGRAM))
        self._keep_worst(compared, share, start)
        self._draw(share, start)

    def _keep_worst(self, compared: Compared, share: Any, start: int) -> None:
        flat = share.reshape(-1)
        number = min(MAX_WORST, flat.size)
        for at in np.argpartition(flat, -number)[-number:]:
            row, column = divmod(int(at), self.columns)
            if flat[at] > 0:
                values = float(compared.golden[row, column]), float(compared.got[row, column])
                self.worst.append((float(flat[at]), start + row, column, *values))
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

    def mean(self, name: str, of: str = "count") -> float:
        return self.total[name] / self.total[of] if self.total[of] else 0.0

    @property
    def one_minus_cosine(self) -> float:
        got, golden = self.total["got_squares"], self.total["golden_squares"]
        if golden == 0 or got == 0:
            return 0.0 if golden == got else 1.0
        if not math.isfinite(self.total["squares"]):
            return 1.0
        return 1 - self.total["dot"] / (math.sqrt(got) * math.sqrt(golden))


def _rule(name: str, measured: float, limit: float) -> RuleResult:
    return RuleResult(name, float(measured), float(limit), bool(measured <= limit))


class Standard(NamedTuple):
    """A row of the table.

    Attributes:
        meaning: In words.
        share: How much of its tolerance each element uses.
        judge: (sums, dtype, tolerances, sums of the third-party result or None) → rules.
    """

    meaning: str
    share: Callable[[Compared], Any]
    judge: Callable[[Sums, str, Tolerances, Sums | None], list[RuleResult]]


# rtol, atol, limit of the largest error. float64 is not in the published table: as far from float32 as float32 is from
# half, so that a float64 kernel with a float32 step in it fails.
_MIXED = {"float16": (2.0**-9, 2.0**-9, 1e-1), "bfloat16": (2.0**-6, 2.0**-6, 1.0),
          "float32": (2.0**-10, 2.0**-16, 1e-2), "float64": (2.0**-30, 2.0**-36, 1e-6)}  # fmt: skip
_STAT = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-13, "float64": 2.0**-36}
_CLOSE = {"float16": 1e-3, "bfloat16": 1e-3, "float32": 1e-4, "float64": 1e-10}
CLOSE_ATOL = 1e-8
COSINE = 0.01
LEVELS = {"L0": (10.0, 2.0, 2.0), "L1": (5.0, 1.5, 1.5), "L2": (2.0, 1.2, 1.2)}  # ratios of MARE, MERE, RMSE
# Below the first, relative errors say nothing, and errors above the second are counted.
SMALL = {"float16": (2.0**-11, 2.0**-16), "bfloat16": (2.0**-8, 2.0**-16),
         "float32": (2.0**-14, 2.0**-30), "float64": (2.0**-40, 2.0**-60)}  # fmt: skip
SMALL_RATIO = 2.0
_OUTSIDE = "share of elements outside atol + rtol·|golden|"


def _close_share(compared: Compared) -> Any:
    rtol, atol = compared.tolerances.rtol, compared.tolerances.atol
    return compared.within(_CLOSE[compared.dtype] if rtol is None else rtol, CLOSE_ATOL if atol is None else atol)


def _cosine_share(compared: Compared) -> Any:
    finite = compared.golden[np.isfinite(compared.golden)]
    # Errors of this size in every element, and at right angles to the golden, reach 1 - cos = 0.01.
    size = np.sqrt(2 * COSINE) * np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    return compared.within(0.0, float(size) or np.finfo(np.float64).tiny)


def _binary_share(compared: Compared) -> Any:
    # Through float64 all NaNs are equal; the sign of zero is not.
    got, golden = compared.got, compared.golden
    other_sign = (np.signbit(got) != np.signbit(golden)) & (got == 0)
    return np.where((got != golden) & ~(np.isnan(got) & np.isnan(golden)) | other_sign, 2.0, 0.0)


def _exact_share(compared: Compared) -> Any:
    with np.errstate(over="ignore"):
        result = compared.got.astype(numpy_dtype(compared.dtype))
    return error_share(result, compared.truth, compared.scale, accumulator_for(compared.dtype))


def _dual(sums: Sums, dtype: str, tolerances: Tolerances, third: Sums | None) -> list[RuleResult]:
    if third is None:
        return []
    mare, mere, rmse = LEVELS[tolerances.level]
    # A third party that is exact would fail all others: its figures count as one rounding at least.
    unit = UNIT_ROUNDOFF[dtype]
    least = unit * max(math.sqrt(sums.mean("golden_squares")), 2.0**-126)
    normal, roots = [], []
    for array in (sums, third):
        normal.append(array.mean("normal_relative", of="normal"))
        roots.append(math.sqrt(array.mean("squares")))
    return [
        _rule(f"MARE over the third party's, {tolerances.level}", sums.most["mare"] / max(third.most["mare"], unit), mare),
        _rule(f"MERE over the third party's, {tolerances.level}", normal[0] / max(normal[1], unit), mere),
        _rule(f"RMSE over the third party's, {tolerances.level}", roots[0] / max(roots[1], least), rmse),
        _rule("wrong small values over the third party's", sums.total["small_wrong"] / max(third.total["small_wrong"], 1),
             SMALL_RATIO),
    ]  # fmt: skip


def _mixed_share(compared: Compared) -> Any:
    return compared.within(*_MIXED[compared.dtype][:2])


def _worst_share(sums: Sums, *_: Any) -> list[RuleResult]:
    return [_rule("largest error in tolerances of lngrad's table", sums.most["share"], 1.0)]


AUTO, LLAMA = "auto", "llama"

STANDARDS = {
    "mixed": Standard(
        "99 % within atol + rtol·|golden|, and none far off", _mixed_share,
        lambda sums, dtype, _, third: [
            _rule(_OUTSIDE, sums.mean("off"), 0.01),
            _rule("largest error where it is more than 32 ULP", sums.most["far"], _MIXED[dtype][2]),
        ]),
    "stat": Standard(
        "mean and largest relative error", lambda item: item.within(10 * _STAT[item.dtype], 1e-7 * (10 * _STAT[item.dtype])),
        lambda sums, dtype, _, third: [
            _rule("MERE, the mean relative error", sums.mean("relative"), np.nextafter(_STAT[dtype], 0)),
            _rule("MARE, the largest relative error", sums.most["relative"], np.nextafter(10 * _STAT[dtype], 0)),
        ]),
    "close": Standard(
        "numpy's isclose with a share that may be off", _close_share,
        lambda sums, dtype, tolerances, third: [
            _rule(_OUTSIDE, sums.mean("off"), _CLOSE[dtype] if tolerances.part is None else tolerances.part)]),
    "cosine": Standard(
        "the angle between result and golden", _cosine_share,
        lambda sums, *_: [_rule("1 - cosine of the angle to the golden", sums.one_minus_cosine, COSINE)]),
    "binary": Standard(
        "the same bits", _binary_share, lambda sums, *_: [_rule("elements whose bits differ", sums.total["off"], 0.0)]),
    "dual": Standard("not much worse than a third party's result", _mixed_share, _dual),
    "exact": Standard(
        "one rounding, and what a float32 sum may lose: lngrad's own table", _exact_share, _worst_share),
    "stable": Standard(  # its scales are larger: of a difference of x·rstd and mean·rstd
        "exact, where the mean may be rounded once more", _exact_share, _worst_share),
    LLAMA: Standard(  # its scales are those of stable, and roundings to x's 16 bits; it goes before a case's own standard
        "stable, where xhat, dy·gamma and dy·xhat may be rounded to x's 16 bits, as by Llama's module", _exact_share,
        _worst_share),
}  # fmt: skip


def usual(dtype: str) -> str:
    """The standard of AUTO for a dtype of x: `mixed` is loose in float32, where it would take results of float16."""
    return "mixed" if bytes_of(dtype) == 2 else "stable"


def meaning(name: str) -> str:
    """A standard in words."""
    if name != AUTO:
        return STANDARDS[name].meaning
    return f"float32 and float64: {STANDARDS['stable'].meaning}; 16 bits: {STANDARDS['mixed'].meaning}"
