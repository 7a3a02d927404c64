"""Random problems against lngrad.error_bound: which share of each bound their errors come to, by kind of problem.

Rows of dy have one scale in half of the problems, and two in the others: sums of 16-bit dy round in float32 there only. In half
of the problems dy is structured: ones, positive, xhat itself, one row large, one column, or the sign of xhat; gamma has a mean
of 0 to 8 times its spread, and some x has one row again and again. `climb` changes a problem step by step, and keeps what comes
nearer to a bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import lngrad
from lngrad.core.error_bound import error_bound
from lngrad.support.dtypes import numpy_dtype


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


STRUCTURES = {  # dy by its name, from what is drawn and xhat
    "random": lambda dy, xhat: dy,
    "ones": lambda dy, xhat: np.ones_like(dy),
    "positive": lambda dy, xhat: np.abs(dy),
    "xhat": lambda dy, xhat: xhat,
    "sign of xhat": lambda dy, xhat: np.sign(xhat),
    "ones and xhat": lambda dy, xhat: 1 + xhat,
    "one row": lambda dy, xhat: dy * (np.arange(len(dy)) == 0)[:, None] * 64 + dy / 64,
    "one row of ones": lambda dy, xhat: (np.arange(len(dy)) == 0)[:, None] * 64 + dy / 64,
    "one column": lambda dy, xhat: dy * (np.arange(dy.shape[1]) == 0),
    "small xhat": lambda dy, xhat: dy * (np.abs(xhat) < 0.5),
}


class Draw(NamedTuple):
    """What a problem is drawn from; `climb` changes one at a time."""

    M: int
    N: int
    seed: int
    structure: str
    gamma_mean: float
    same_rows: bool  # all rows of x are alike, so that all means are off alike


class Shares(NamedTuple):
    """Which share of its bound each error comes to."""

    dx: float
    dgamma: float
    dbeta: float


def _norm(array: Any) -> float:
    return float(np.sqrt((array * array).sum()))


def drawn(M: int, N: int, rng: np.random.Generator) -> Draw:
    structure = str(rng.choice(list(STRUCTURES))) if rng.random() < 0.5 else "random"
    return Draw(M, N, int(rng.integers(1 << 31)), structure, float(rng.choice([0, 1, 2, 8])), rng.random() < 0.1)


def share(draw: Draw, kind: Kind) -> Shares:
    """Which share of its bound each error of a problem comes to; a gradient that there is not comes to none."""
    M, N, rng = draw.M, draw.N, np.random.default_rng(draw.seed)
    dtype = numpy_dtype(kind.dtype)
    wide = np.longdouble if kind.dtype == "float64" else np.float64
    spread = 2.0 ** rng.integers(-4, 5)
    x = ((rng.choice((-1, 1)) * kind.condition + rng.standard_normal((M, N))) * spread).astype(dtype)
    if draw.same_rows:
        x[:] = x[0]
    scales: Any = np.ones((M, 1))
    if rng.random() < 0.5:
        scales = 8 * 2.0 ** (-16 * rng.integers(0, 2, (M, 1)))
        scales[0] = 8
    centred = x.astype(np.float64) - (x.astype(np.float64).mean(1, keepdims=True) if kind.norm == "layer_norm" else 0)
    xhat = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
    dy: Any = (STRUCTURES[draw.structure](rng.standard_normal((M, N)), xhat) * scales).astype(dtype)
    gamma = (draw.gamma_mean / 2 + 0.5 * rng.standard_normal(N)).astype(numpy_dtype(kind.gamma_dtype))
    exact = x.astype(np.float64).astype(wide)
    dys, g = dy.astype(np.float64).astype(wide), gamma.astype(np.float64).astype(wide)
    seen = 0.0
    if kind.norm == "rms_norm":
        rms = lngrad.rms_norm(x, gamma, eps=1e-12)
        got: Any = lngrad.rms_norm_backward(dy, x, rms.rstd, gamma)
    else:
        forward = lngrad.layer_norm(x, gamma, eps=1e-12)
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
    bound = error_bound(M, N, kind.dtype, gamma_dtype=kind.gamma_dtype, condition=seen, complete_mean=kind.complete)
    lost = bound.xhat if kind.norm == "layer_norm" else 0.0
    of_means = np.abs(dxhat.sum(1)) + np.abs((dxhat * xhat).sum(1))
    limits = [bound.dx * (_norm(rstd * dxhat) + _norm(dx)) + lost * _norm(rstd[:, 0] * of_means) / np.sqrt(N)]
    errors = [_norm(got.dx.astype(wide) - dx)]
    scales = [np.sqrt((terms**2).sum(0)) + np.abs(terms.sum(0)) for terms in (dys * xhat, dys)]
    limits += [bound.dgamma * _norm(scales[0]) + lost * _norm(scales[1]), bound.dbeta * _norm(scales[1])]
    errors += [
        _norm(result.astype(wide) - terms.sum(0)) for result, terms in zip(got[1:], (dys * xhat, dys), strict=False)
    ]
    exact_results = (dx, (dys * xhat).sum(0), dys.sum(0))
    normal = [_is_normal(array, result.dtype) for array, result in zip(exact_results, got, strict=False)]
    table = zip([*errors, 0.0][:3], limits, [*normal, False][:3], strict=True)
    return Shares(*(float(error / limit) if limit and holds else 0.0 for error, limit, holds in table))


def _is_normal(exact: Any, dtype: Any) -> bool:
    """Whether a bound says anything of a result: it does not overflow, and its largest element is far from subnormal."""
    limits, most = ml_dtypes.finfo(dtype), np.abs(exact).max(initial=0)
    return bool(64 * float(limits.smallest_normal) < most < float(limits.max) or most == 0)


def shares(problems: int, seed: int, rows: int = 512, columns: int = 1024) -> dict[Kind, list[Shares]]:
    """Of random shapes up to rows × columns, each kind in turn."""
    rng = np.random.default_rng(seed)
    found: dict[Kind, list[Shares]] = {kind: [] for kind in KINDS}
    for number in range(problems):
        M, N = (int(2 ** rng.uniform(0, np.log2(most))) for most in (rows, columns))
        kind = KINDS[number % len(KINDS)]
        found[kind].append(share(drawn(M, max(N, 4), rng), kind))
    return found


def climb(kind: Kind, result: int, steps: int, seed: int, rows: int = 64, columns: int = 4096) -> tuple[float, Draw]:
    """The largest share of a result's bound that is found by changing a problem step by step, and that problem."""
    rng = np.random.default_rng(seed)
    best = drawn(rows // 4, columns // 4, rng)
    high = share(best, kind)[result]
    for _ in range(steps):
        fresh = drawn(int(2 ** rng.uniform(0, np.log2(rows))), max(4, int(2 ** rng.uniform(2, np.log2(columns)))), rng)
        field = str(rng.choice(Draw._fields))
        other = best._replace(**{field: getattr(fresh, field), "seed": fresh.seed})
        got = share(other, kind)[result]
        if got > high:
            best, high = other, got
    return high, best
