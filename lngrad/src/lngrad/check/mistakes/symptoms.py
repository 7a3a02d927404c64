"""What an error looks like that nothing explains: where it is, and of what kind."""

from __future__ import annotations

from functools import partial

import numpy as np

from lngrad.check.mistakes.sum_weights import ordinal
from lngrad.typing import Array

MIN_AGREE = 0.95  # of the elements concerned, for a pattern to be named
NO_PATTERN = "without a pattern"
PERIODS = (2, 3, 4, 8, 16, 32, 64, 128)


def describe(name: str, got: Array, golden: Array, share: Array) -> str:
    """The pattern of an output's error, of (rows, columns) in float64; an element is off where share > 1."""
    off = share > 1
    rows, columns = (partial(_lines, axis=axis) for axis in (0, 1))
    for rule in (_not_finite, _other_infinity, _never_written, _factor, rows, columns, _near_zero):
        if found := rule(got, golden, off):
            return f"{name}: {found}"
    return f"{name}: {off.mean():.1%} of the elements are off, spread over rows and columns {NO_PATTERN}"


def _not_finite(got: Array, golden: Array, off: Array) -> str | None:
    wild = (~np.isfinite(got) & np.isfinite(golden)) | (np.isnan(got) & ~np.isnan(golden))
    if not wild.any():
        return None
    row, column = np.argwhere(wild)[0]
    kind = "NaN" if np.isnan(got[row, column]) else "infinity"
    rows = np.flatnonzero(wild.any(1))
    where = f"in {len(rows)} of {len(got)} rows, first" if len(got) > 1 else "first"
    belongs = f"where {golden[row, column]:.4g} belongs"
    return f"{kind} {where} at row {row}, column {column}, {belongs}: an overflow, or memory never written"


def _other_infinity(got: Array, golden: Array, off: Array) -> str | None:
    """Where the right result is not finite itself, and this one is something else."""
    other = off & ~np.isfinite(golden)
    if not other.any() or other.sum() < MIN_AGREE * off.sum():
        return None
    row, column = np.argwhere(other)[0]
    which = f"{other.sum()} elements that are not finite, first at row {row}, column {column}"
    values = f"{got[row, column]:.4g}, where {golden[row, column]:.4g} belongs"
    return f"right but for {which}: {values}: look at the terms that have an infinity"


def _never_written(got: Array, golden: Array, off: Array) -> str | None:
    return "all zeros: never written" if off.any() and not got.any() and golden.any() else None


def _factor(got: Array, golden: Array, off: Array) -> str | None:
    usable = off & np.isfinite(got) & np.isfinite(golden) & (golden != 0)
    if usable.sum() < 4 or usable.sum() < 0.5 * off.sum() or usable.mean() < 0.9:
        return None
    ratio = got[usable] / golden[usable]
    middle = float(np.median(ratio))
    if abs(middle - 1) < 1e-3 or np.mean(np.abs(ratio - middle) <= 0.02 * abs(middle)) < MIN_AGREE:
        return None
    return "the sign is turned" if abs(middle + 1) < 0.02 else f"{middle:.4g} times what it should be, everywhere"


def _lines(got: Array, golden: Array, off: Array, axis: int) -> str | None:
    """Which rows or columns: a range, all from one on, every k-th."""
    off, what = np.any(off, axis=1 - axis), ("row", "column")[axis]
    places = np.flatnonzero(off)
    if len(off) < 2 or not len(places) or len(places) >= MIN_AGREE * len(off):
        return None
    first, last = int(places[0]), int(places[-1])
    if len(places) == 1:
        return f"wrong in {what} {first} only"
    if len(places) >= MIN_AGREE * (last - first + 1):
        if last == len(off) - 1:
            edge = next((size for size in (512, 256, 128, 64, 32, 16, 8) if first and first % size == 0), None)
            tile = f", the edge of a tile of {edge}: the last tile" if edge else ""
            return f"wrong from {what} {first} to the end{tile}"
        return f"wrong in {what}s {first} to {last} only"
    for period in PERIODS:
        if len(places) >= 3 and len(set((places % period).tolist())) == 1 and len(places) >= 0.6 * len(off) / period:
            return f"wrong in every {ordinal(period)} {what}, from {first} on"
    if len(places) <= 0.1 * len(off):
        return f"wrong in {len(places)} of {len(off)} {what}s, such as {', '.join(map(str, places[:4].tolist()))}"
    return None


def _near_zero(got: Array, golden: Array, off: Array) -> str | None:
    if not off.any() or off.all():
        return None
    size = np.abs(golden)
    if np.median(size[off]) < 0.1 * np.median(size[~off]):
        return f"wrong where the result is near zero ({off.mean():.1%} of the elements): terms cancel; look at absolute errors"
    if off.mean() < 0.5 and np.median(size[off]) > 4 * np.median(size[~off]):
        return (
            f"wrong where the result is large ({off.mean():.1%} of the elements): overflow, saturation or a lost digit"
        )
    return None
