"""Known mistakes: what each would have given, and what to say about it. Extends lngrad.testing.MUTANTS.

They return float64 gradients of a block of rows, or None where the mistake can't be made: no gamma to forget, one row
only. None of them is a caricature: each has been met in a library or is in reach of a reader of CANN's documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lngrad import reference
from lngrad.arrays import numpy_dtype
from lngrad.check.case import CheckCase
from lngrad.check.inputs import Given
from lngrad.problem import Grads
from lngrad.testing import MUTANTS, Inputs

__all__ = ["MISTAKES", "Mistake", "true_grads"]

Wrong = Callable[[CheckCase, Given], Grads | None]


@dataclass(frozen=True)
class Mistake:
    """What to say about a mistake, and how to make it.

    Attributes:
        sentence: What the person did, and where to look.
        grads: The result of it, in float64.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so it is told by bits.
    """

    sentence: str
    grads: Wrong
    by_size: bool = False
    rounding: bool = False


def true_grads(inputs: Inputs) -> Grads:
    """The reference, quiet about the infinities that a case forces."""
    with np.errstate(all="ignore"):
        return reference.layer_norm_backward(
            inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized=inputs.normalized
        )


def _known(name: str) -> Wrong:
    def grads(case: CheckCase, given: Given) -> Grads | None:
        if (name == "gamma forgotten" and given.exact.gamma is None) or not given.exact.x.size:
            return None
        with np.errstate(all="ignore"):
            return MUTANTS[name](given.exact)

    return grads


def _with(change: Callable[[CheckCase, Inputs], dict[str, Any] | None]) -> Wrong:
    """The reference on changed inputs."""

    def grads(case: CheckCase, given: Given) -> Grads | None:
        if not given.exact.x.size:
            return None
        with np.errstate(all="ignore"):
            changed = change(case, given.exact)
        return None if changed is None else true_grads(replace(given.exact, **changed))

    return grads


def _rows(array: Any, inputs: Inputs) -> Any:
    return np.asarray(array).astype(np.float64).reshape(-1, *inputs.normalized_shape)


def _flat(inputs: Inputs) -> tuple[Any, Any, Any, Any]:
    """dy, xhat, dxhat (rows, N) and rstd (rows, 1), in float64."""
    rows = inputs.x.size // max(1, int(np.prod(inputs.normalized_shape)))
    dy, x = (np.asarray(one).astype(np.float64).reshape(rows, -1) for one in (inputs.dy, inputs.x))
    mean, rstd = (np.asarray(one, np.float64).reshape(rows, 1) for one in (inputs.mean, inputs.rstd))
    gamma = 1.0 if inputs.gamma is None else np.asarray(inputs.gamma).astype(np.float64).reshape(1, -1)
    return dy, (x - mean) * rstd, dy * gamma, rstd


def _changed(make: Callable[..., dict[str, Any] | None]) -> Wrong:
    """The truth with some results replaced; `make` gets dy, xhat, dxhat, rstd as of _flat, and the truth."""

    def grads(case: CheckCase, given: Given) -> Grads | None:
        inputs = given.exact
        if not inputs.x.size:
            return None
        true = true_grads(inputs)
        with np.errstate(all="ignore"):
            results = make(case, inputs, *_flat(inputs), true)
        if results is None:
            return None
        return Grads(
            *(results.get(name, old).reshape(old.shape) for name, old in zip(Grads._fields, true, strict=True))
        )

    return grads


# --- Statistics -------------------------------------------------------------------------------------------------------


def _variance_of(case: CheckCase, inputs: Inputs) -> Any:
    return 1 / np.asarray(inputs.rstd, np.float64) ** 2 - case.eps


def _eps(new: Callable[[float], float]) -> Wrong:
    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        return {"rstd": 1 / np.sqrt(np.maximum(_variance_of(case, inputs) + new(case.eps), 0))}

    return _with(change)


def _recomputed(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    return {"mean": np.asarray(inputs.x).astype(np.float64).mean(axes, keepdims=True)}


def _both_recomputed(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    forward = reference.layer_norm(inputs.x, normalized=inputs.normalized, eps=case.eps)
    return {"mean": forward.mean, "rstd": forward.rstd}


def _uncentred(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    x = np.asarray(inputs.x).astype(np.float64)
    return {"rstd": 1 / np.sqrt((x**2).mean(axes, keepdims=True) + case.eps)}


def _cancelled(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    x = np.asarray(inputs.x).astype(np.float32)
    mean = x.mean(axes, keepdims=True, dtype=np.float32)
    variance = (x * x).mean(axes, keepdims=True, dtype=np.float32) - mean * mean
    return {"rstd": 1 / np.sqrt(np.maximum(variance, 0).astype(np.float64) + case.eps)}


def _transposed(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    lead = inputs.x.shape[: inputs.x.ndim - inputs.normalized]
    if sum(size > 1 for size in lead) < 2:
        return None
    turn = [np.asarray(one, np.float64).reshape(lead).T.reshape(-1) for one in (inputs.mean, inputs.rstd)]
    return {"mean": turn[0], "rstd": turn[1]}


def _swapped(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"mean": inputs.rstd, "rstd": inputs.mean}


def _previous_row(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    rows = _rows(inputs.dy, inputs)
    return None if len(rows) < 2 else {"dy": np.roll(rows, -1, axis=0).reshape(inputs.x.shape)}


# --- dx ---------------------------------------------------------------------------------------------------------------


def _dx_of(rstd: Any, dxhat: Any, xhat: Any, first: Any, second: Any) -> dict[str, Any]:
    return {"dx": rstd * (dxhat - first - xhat * second)}


def _sums_for_means(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    first, second = dxhat.sum(1, keepdims=True), (dxhat * xhat).sum(1, keepdims=True)
    return None if dy.shape[1] < 2 else _dx_of(rstd, dxhat, xhat, first, second)


def _rstd_missing(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return {"dx": true.dx.reshape(dy.shape) / rstd}


def _means_over(which: str) -> Wrong:
    def make(case: CheckCase, inputs: Inputs, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        R = inputs.normalized_shape
        if which == "last":
            if len(R) < 2 or R[:-1] == (1,) * (len(R) - 1):
                return None
            dxhat, xhat = (one.reshape(-1, *R) for one in (dxhat, xhat))
            axes: Any = (-1,)
            rstd = rstd.reshape(-1, *(1,) * len(R))
        else:
            if len(dy) < 2:
                return None
            axes = (0,) if which == "rows" else (0, 1)
        first, second = dxhat.mean(axes, keepdims=True), (dxhat * xhat).mean(axes, keepdims=True)
        return _dx_of(rstd, dxhat, xhat, first, second)

    return _changed(make)


def _extra_term(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    # pd_var·(1/H)·Σ(-2(x - mean)), divided by H: zero where mean is the row's mean.
    pd_var = -0.5 * (dxhat * xhat).sum(1, keepdims=True) * rstd**2
    extra = pd_var * (-2 * xhat / rstd).mean(1, keepdims=True) / dy.shape[1]
    return {"dx": true.dx.reshape(dy.shape) + extra}


# --- Column sums ------------------------------------------------------------------------------------------------------


def _sums(case: Any, dy: Any, xhat: Any, weight: Any) -> dict[str, Any]:
    weight = np.asarray(weight, np.float64).reshape(-1, 1)
    return {"dgamma": (dy * xhat * weight).sum(0), "dbeta": (dy * weight).sum(0)}


def _last_rows(part: int, factor: float) -> Wrong:
    """The last `part` rows, or what remains behind whole parts, counted `factor` times."""

    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        tail = len(dy) % part or part
        if tail >= len(dy):
            return None
        weight = np.ones(len(dy))
        weight[-tail:] = factor
        return _sums(case, dy, xhat, weight)

    return _changed(make)


def _narrow_sums(dtype: str) -> Wrong:
    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        narrow = numpy_dtype(dtype)
        totals = np.zeros((2, dy.shape[1]), narrow)
        for row, product in zip(dy, dy * xhat, strict=True):
            totals = (totals.astype(np.float64) + np.stack([product, row])).astype(narrow)
        return {"dgamma": totals[0].astype(np.float64), "dbeta": totals[1].astype(np.float64)}

    return _changed(make)


def _sums_swapped(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return {"dgamma": true.dbeta, "dbeta": true.dgamma}


def _without_mean(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    x = np.asarray(inputs.x).astype(np.float64).reshape(dy.shape)
    return {"dgamma": (dy * x * rstd).sum(0)}


def _gamma_in_sums(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return None if inputs.gamma is None else {"dgamma": (dxhat * xhat).sum(0), "dbeta": dxhat.sum(0)}


# --- Tiles and roundings ----------------------------------------------------------------------------------------------


def _last_columns(width: int) -> Wrong:
    """Everything behind the last whole tile of `width` columns stays zero."""

    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        tail = dy.shape[1] % width
        if not tail or tail == dy.shape[1]:
            return None
        results = {name: np.array(one).reshape(-1, dy.shape[1]) for name, one in zip(Grads._fields, true, strict=True)}
        for one in results.values():
            one[:, -tail:] = 0
        return results

    return _changed(make)


_DIGITS = {"float16": 11, "bfloat16": 8}


def _half_away(case: CheckCase, given: Given) -> Grads | None:
    if not set(case.output_dtypes) & set(_DIGITS):
        return None
    rounded = []
    for one, dtype in zip(true_grads(given.exact), case.output_dtypes, strict=True):
        if dtype in _DIGITS:
            with np.errstate(invalid="ignore", over="ignore"):
                mantissa, exponent = np.frexp(one.astype(np.float32).astype(np.float64))
                whole = np.copysign(np.floor(np.abs(np.ldexp(mantissa, _DIGITS[dtype])) + 0.5), mantissa)
                one = np.ldexp(whole, exponent - _DIGITS[dtype])
        rounded.append(one)
    return Grads(*rounded)


# In order: where two explain a result alike, the first is named.
MISTAKES: dict[str, Mistake] = {
    "gamma forgotten": Mistake(
        "dx is computed without gamma: multiply dy by gamma before the two row means.", _known("gamma forgotten")
    ),
    "dy ignored": Mistake("the result does not depend on dy: it is what dy = 1 gives.", _known("dy ignored")),
    "dy of the next row": Mistake(
        "each row uses the dy of the row before it: an index that is off by one row.", _known("dy of the next row")
    ),
    "dy of another row": Mistake(
        "each row uses the dy of the row after it: an index that is off by one row.", _with(_previous_row)
    ),
    "mean of dxhat missing": Mistake(
        "dx lacks the row mean of dy·gamma: subtract it.", _known("mean of dxhat missing")
    ),
    "mean of dxhat·xhat missing": Mistake(
        "dx lacks xhat times the row mean of dy·gamma·xhat: subtract it.", _known("mean of dxhat·xhat missing")
    ),
    "variance in rstd's place": Mistake(
        "the variance was given where rstd is expected, or read as if it were: check which of the two the "
        "third output of the forward is.",
        _known("variance in rstd's place"),
    ),
    "mean and rstd swapped": Mistake(
        "mean and rstd stand in each other's place: the tile APIs have the variance before the mean, aclnn "
        "the mean first.",
        _with(_swapped),
    ),
    "eps added twice": Mistake(
        "eps is added twice: the variance, or rstd, already contains it.", _eps(lambda eps: 2 * eps)
    ),
    "eps missing": Mistake("eps is not added to the variance.", _eps(lambda eps: 0.0)),
    "eps 1e-5 for 1e-12": Mistake(
        "eps is 1e-5, the graph op's value for 16-bit x; this case has another.", _eps(lambda eps: 1e-5)
    ),
    "eps 1e-12 for 1e-5": Mistake(
        "eps is 1e-12, the graph op's value for float32 x; this case has another.", _eps(lambda eps: 1e-12)
    ),
    "eps too large": Mistake(
        "rstd is too small by 0.5 %: the variance is 1 % too large, as by another eps or by dividing by N - 1.",
        _known("eps too large"),
    ),
    "statistics in wrong order": Mistake(
        "mean belongs to the row before: an index that is off by one row.", _known("statistics in wrong order")
    ),
    "statistics transposed": Mistake(
        "mean and rstd are read in the order of the transposed leading dimensions.", _with(_transposed)
    ),
    "statistics recomputed": Mistake(
        "mean and rstd are recomputed from x; the interface takes those that are given.", _with(_both_recomputed)
    ),
    "mean recomputed": Mistake(
        "mean is recomputed from x; the interface takes the one that is given.", _with(_recomputed)
    ),
    "uncentred variance": Mistake(
        "the variance is taken about zero: mean(x²) without subtracting mean².", _with(_uncentred)
    ),
    "variance by cancellation": Mistake(
        "the variance is E[x²] - E[x]² in float32, which cancels where the mean is large: centre x first.",
        _with(_cancelled),
        by_size=True,
    ),
    "means over the last axis only": Mistake(
        "the row means go over the last axis only: normalized_shape has more, flatten it.", _means_over("last")
    ),
    "means over rows": Mistake(
        "the two means go over axis 0, the rows, instead of the normalized axes.", _means_over("rows")
    ),
    "means over the whole tensor": Mistake(
        "the two means go over the whole tensor: normalized_shape was flattened into the rows.", _means_over("all")
    ),
    "sums for means": Mistake(
        "the two row sums are not divided by the number of normalized elements.", _changed(_sums_for_means)
    ),
    "rstd missing in dx": Mistake("dx is not multiplied by rstd at the end.", _changed(_rstd_missing)),
    "extra term of the tile formula": Mistake(
        "dx has the tile APIs' extra term pd_var·(1/H)·Σ(-2(x - mean)): right for LayerNormGrad on tiles, "
        "not for the graph ops and aclnn; it shows since mean is not the row's mean.",
        _changed(_extra_term),
    ),
    "last row lost": Mistake("dgamma and dbeta lack the last row.", _known("last row lost")),
    **{
        f"last part of {rows} rows {word}": Mistake(
            f"dgamma and dbeta {verb} the last rows behind whole parts of {rows}: a partial sum is {word}.",
            _last_rows(rows, factor),
        )
        for rows in (8, 16, 32, 64, 128)
        for word, verb, factor in (("lost", "lack", 0.0), ("counted twice", "have twice", 2.0))
    },
    "sums added twice": Mistake(
        "dgamma and dbeta are twice what they should be: partial sums are added into a buffer that has them already.",
        _known("sums added twice"),
    ),
    "dgamma and dbeta swapped": Mistake("dgamma and dbeta stand in each other's place.", _changed(_sums_swapped)),
    "gamma in the column sums": Mistake(
        "dgamma and dbeta are sums of dy·gamma: they take dy alone.", _changed(_gamma_in_sums)
    ),
    "dgamma without the mean": Mistake("dgamma uses x·rstd: subtract the mean before.", _changed(_without_mean)),
    "last column lost": Mistake(
        "the last column of dx is zero: a loop ends one column early.", _known("last column lost")
    ),
    **{
        f"last tile of {width} columns skipped": Mistake(
            f"the columns behind the last whole tile of {width} are zero: the tail is not computed.",
            _last_columns(width),
        )
        for width in (512, 256, 128, 64, 32, 16, 8)
    },
    "16-bit sums": Mistake(
        "dgamma and dbeta are accumulated in bfloat16: keep them in float32 and round once.",
        _narrow_sums("bfloat16"),
        by_size=True,
    ),
    "float16 sums": Mistake(
        "dgamma and dbeta are accumulated in float16: keep them in float32 and round once.",
        _narrow_sums("float16"),
        by_size=True,
    ),
    "half-away rounding": Mistake(
        "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds them to even.",
        _half_away,
        rounding=True,
    ),
}
