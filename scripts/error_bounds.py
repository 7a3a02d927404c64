"""Random problems against lngrad.error_bound: python scripts/error_bounds.py [problems] [seed] [most rows] [most columns].

Prints the largest and the median share of each bound that was seen, by norm, dtypes, condition and way. A bound is within ten
times of what is seen if the largest share of a kind is at least 0.1; those below are named. Exits with 1 if one is exceeded.
Rows of dy have one scale in half of the problems, and two in the others: sums of 16-bit dy round in float32 there only.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

import lngrad
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.error_bound import ErrorBound, error_bound


class Kind(NamedTuple):
    """What random problems have in common. A condition is that of centred rows; of others it is their offset alone."""

    norm: str
    dtype: str
    gamma_dtype: str
    condition: float
    complete: bool


DTYPES = (
    ("float32", (0.0, 10.0, 1e3, 1e5)),
    ("bfloat16", (0.0,)),
    ("float16", (0.0,)),
    ("float64", (0.0, 10.0, 1e3, 1e5)),
)
KINDS = [
    Kind(norm, dtype, gamma_dtype, condition, complete)
    for norm, ways in (("layer_norm", (False, True)), ("rms_norm", (False,)))
    for dtype, conditions in DTYPES
    for gamma_dtype in sorted({dtype, "float32"} - ({"float32"} if dtype == "float64" else set()))
    for condition in (conditions if norm == "layer_norm" else conditions[::3])
    for complete in ways
]


def _norm(array: Any) -> float:
    return float(np.sqrt((array * array).sum()))


def share(M: int, N: int, kind: Kind, rng: np.random.Generator) -> ErrorBound:
    """Which share of its bound each error of a random problem comes to; a gradient that there is not comes to none."""
    dtype = numpy_dtype(kind.dtype)
    wide = np.longdouble if kind.dtype == "float64" else np.float64
    spread = 2.0 ** rng.integers(-4, 5)
    x = ((rng.choice((-1, 1)) * kind.condition + rng.standard_normal((M, N))) * spread).astype(dtype)
    scales: Any = np.ones((M, 1))
    if rng.random() < 0.5:
        scales = 8 * 2.0 ** (-16 * rng.integers(0, 2, (M, 1)))
        scales[0] = 8
    dy: Any = (rng.standard_normal((M, N)) * scales).astype(dtype)
    gamma = (1 + 0.5 * rng.standard_normal(N)).astype(numpy_dtype(kind.gamma_dtype))
    exact = x.astype(np.float64).astype(wide)
    dys, g = dy.astype(np.float64).astype(wide), gamma.astype(np.float64).astype(wide)
    seen = 0.0
    if kind.norm == "rms_norm":
        rms = lngrad.rms_norm(x, gamma=gamma, eps=1e-12)
        got: Any = lngrad.rms_norm_backward(dy, x, rms.rstd, gamma)
    else:
        forward = lngrad.layer_norm(x, gamma=gamma, eps=1e-12)
        got = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma, complete_mean=kind.complete)
        seen = float(np.max(np.abs(forward.mean.astype(np.float64)) * forward.rstd))
        exact -= exact.mean(1, keepdims=True)
        exact -= exact.mean(1, keepdims=True)  # what the first mean was rounded by
    rstd: Any = 1 / np.sqrt((exact**2).mean(1, keepdims=True) + wide(1e-12))
    dxhat: Any = dys * g
    xhat = exact * rstd
    dx = dxhat - xhat * (dxhat * xhat).mean(1, keepdims=True)
    if kind.norm == "layer_norm":
        dx -= dxhat.mean(1, keepdims=True)
    dx *= rstd
    shares = [_norm(got.dx.astype(wide) - dx) / (_norm(rstd * dxhat) + _norm(dx))]
    for result, terms in zip(got[1:], (dys * xhat, dys), strict=False):
        total = terms.sum(0)
        shares.append(_norm(result.astype(wide) - total) / _norm(np.sqrt((terms**2).sum(0)) + np.abs(total)))
    bound = error_bound(
        M, N, kind.dtype, gamma_dtype=kind.gamma_dtype, condition=seen, complete_mean=kind.complete
    )  # fmt: skip
    return ErrorBound(*(one / other for one, other in zip([*shares, 0.0][:3], bound, strict=True)))


def shares(problems: int, seed: int, rows: int = 512, columns: int = 1024) -> dict[Kind, list[ErrorBound]]:
    """Of random shapes up to rows × columns, each kind in turn."""
    rng = np.random.default_rng(seed)
    found: dict[Kind, list[ErrorBound]] = {kind: [] for kind in KINDS}
    for number in range(problems):
        M, N = (int(2 ** rng.uniform(0, np.log2(most))) for most in (rows, columns))
        kind = KINDS[number % len(KINDS)]
        found[kind].append(share(M, max(N, 4), kind, rng))
    return found


def main() -> int:
    problems, *how = map(int, sys.argv[1:] or ["1000"])
    exceeded, loose = 0, []
    for kind, of_kind in shares(problems, *(how or [0])).items():
        table = np.array(of_kind)
        exceeded += int((table > 1).sum())
        way = "completed" if kind.complete else "given"
        name = f"{kind.norm:10} {kind.dtype:8} {kind.gamma_dtype:8} {kind.condition:6g} {way:9}"
        columns = []
        for result, high, middle in zip(ErrorBound._fields, table.max(0), np.median(table, 0), strict=True):
            if high > 0:
                columns.append(f"{result} {high:.2f} (median {middle:.2f})")
            if 0 < high < 0.1:
                loose.append(f"{result} of {' '.join(name.split())}: {high:.3f}")
        print(f"{name} {len(table):6}  {'  '.join(columns)}")
    print(f"{exceeded} bounds exceeded in {problems} problems; more than ten times of what was seen: {loose or 'none'}")
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
