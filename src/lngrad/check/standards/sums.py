"""What standards need to know of a result: sums over its elements, which blocks of rows add to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FAR_ULP = 32
MAP_ROWS, MAP_COLUMNS = 32, 64
MOST_WORST = 8
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
        number = min(MOST_WORST, flat.size)
        for at in np.argpartition(flat, -number)[-number:]:
            row, column = divmod(int(at), self.columns)
            found = (float(flat[at]), start + row, column, float(golden[row, column]), float(got[row, column]))
            if found[0] > 0:
                self.worst.append(found)
        self.worst = sorted(self.worst, key=lambda entry: (-entry[0], entry[1], entry[2]))[:MOST_WORST]

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
