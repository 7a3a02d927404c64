"""Random problems against lngrad.error_bound: python scripts/error_bounds.py [problems] [seed].

Prints the largest and the smallest share of each bound that was seen, by dtype and condition. Exits with 1 if a bound was
exceeded.
"""

from __future__ import annotations

import sys

import numpy as np

import lngrad
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.error_bound import ErrorBound, error_bound

DTYPES = ("float32", "bfloat16", "float16", "float64")
CONDITIONS = (0.0, 10.0, 1e3, 1e5)


def share(M: int, N: int, dtype: str, condition: float, complete: bool, rng: np.random.Generator) -> ErrorBound:
    """Which share of its bound each error of a random problem comes to."""
    kind, wide = numpy_dtype(dtype), np.longdouble
    spread = 2.0 ** rng.integers(-4, 5)
    x = ((rng.choice((-1, 1)) * condition + rng.standard_normal((M, N))) * spread).astype(kind)
    dy, gamma = rng.standard_normal((M, N)).astype(kind), (1 + 0.5 * rng.standard_normal(N)).astype(kind)
    forward = lngrad.layer_norm(x, gamma=gamma, eps=1e-12)
    got = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma, complete_mean=complete)
    exact = x.astype(np.float64).astype(wide)
    dys, g = dy.astype(np.float64).astype(wide), gamma.astype(np.float64).astype(wide)
    centred = exact - exact.mean(1, keepdims=True)
    centred -= centred.mean(1, keepdims=True)  # what the first mean was rounded by
    rstd = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + wide(1e-12))
    xhat, dxhat = centred * rstd, dys * g
    dx = rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * (dxhat * xhat).mean(1, keepdims=True))
    scale = np.linalg.norm((rstd * dxhat).astype(np.float64)) + np.linalg.norm(dx.astype(np.float64))
    shares = [np.linalg.norm((got.dx.astype(np.float64) - dx).astype(np.float64)) / scale]
    for result, terms in ((got.dgamma, dys * xhat), (got.dbeta, dys)):
        total = terms.sum(0)
        scale = np.linalg.norm((np.sqrt((terms**2).sum(0)) + np.abs(total)).astype(np.float64))
        shares.append(np.linalg.norm((result.astype(np.float64) - total).astype(np.float64)) / scale)
    seen = float(np.max(np.abs(forward.mean.astype(np.float64)) * forward.rstd))
    bound = error_bound(M, N, dtype, condition=seen, complete_mean=complete)
    return ErrorBound(*(float(one / other) for one, other in zip(shares, bound, strict=True)))


def shares(problems: int, seed: int) -> dict[tuple[str, float, bool], list[ErrorBound]]:
    """Of random shapes, each dtype, condition and way in turn."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[str, float, bool], list[ErrorBound]] = {}
    for number in range(problems):
        dtype, complete = DTYPES[number % 4], bool(number // 4 % 2)
        condition = CONDITIONS[number // 8 % 4] if dtype in ("float32", "float64") else 0.0
        M, N = (int(2 ** rng.uniform(0, top)) for top in (9, 10))
        N = max(N, 4)
        found.setdefault((dtype, condition, complete), []).append(share(M, N, dtype, condition, complete, rng))
    return found


def main() -> int:
    problems, seed = (int(given) for given in (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    exceeded = 0
    for (dtype, condition, complete), of_case in sorted(shares(problems, seed).items()):
        table = np.array(of_case)
        exceeded += int((table > 1).sum())
        most = zip(ErrorBound._fields, table.max(0), np.median(table, 0), strict=True)
        columns = "  ".join(f"{name} {high:.2f} (median {middle:.2f})" for name, high, middle in most)
        print(f"{dtype:9} condition {condition:8g} {'completed' if complete else 'given':9} {len(table):6}  {columns}")
    print(f"{exceeded} bounds exceeded in {problems} problems")
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
