"""Known mistakes: what each would have given. Extends lngrad.testing.MUTANTS; their names are in catalogue.py.

They return float64 gradients of a block of rows, or None where the mistake can't be made: no gamma to forget, one row
only. Each was found in a library, or is one that a reader of CANN's documents may make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad import reference
from lngrad.check.case import CheckCase
from lngrad.check.inputs import Given
from lngrad.dtypes import numpy_dtype
from lngrad.problem import Grads
from lngrad.testing import MUTANTS, Inputs, terms_of

__all__ = [
    "Wrong",
    "both_recomputed",
    "cancelled",
    "extra_term",
    "gamma_in_sums",
    "half_away",
    "known",
    "last_columns",
    "last_rows",
    "means_over",
    "narrow_sums",
    "next_row",
    "on_changed_inputs",
    "recomputed",
    "rstd_missing",
    "sums_for_means",
    "sums_swapped",
    "swapped",
    "transposed",
    "true_grads",
    "uncentred",
    "with_eps",
    "with_results",
    "without_mean",
]

Wrong = Callable[[CheckCase, Given], Grads | None]


def true_grads(inputs: Inputs) -> Grads:
    """The reference, quiet about the infinities that a case forces."""
    with np.errstate(all="ignore"):
        return reference.layer_norm_backward(
            inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized=inputs.normalized
        )


def known(name: str) -> Wrong:
    def grads(case: CheckCase, given: Given) -> Grads | None:
        if (name == "gamma forgotten" and given.exact.gamma is None) or not given.exact.x.size:
            return None
        with np.errstate(all="ignore"):
            return MUTANTS[name](given.exact)

    return grads


def on_changed_inputs(change: Callable[[CheckCase, Inputs], dict[str, Any] | None]) -> Wrong:
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
    dy, xhat, dxhat, rstd = terms_of(inputs)
    rows = rstd.size
    return dy.reshape(rows, -1), xhat.reshape(rows, -1), dxhat.reshape(rows, -1), rstd.reshape(rows, 1)


def with_results(make: Callable[..., dict[str, Any] | None]) -> Wrong:
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


def _variance_of(case: CheckCase, inputs: Inputs) -> Any:
    return 1 / np.asarray(inputs.rstd, np.float64) ** 2 - case.eps


def with_eps(new: Callable[[float], float]) -> Wrong:
    def change(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
        return {"rstd": 1 / np.sqrt(np.maximum(_variance_of(case, inputs) + new(case.eps), 0))}

    return on_changed_inputs(change)


def recomputed(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    return {"mean": np.asarray(inputs.x).astype(np.float64).mean(axes, keepdims=True)}


def both_recomputed(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    forward = reference.layer_norm(inputs.x, normalized=inputs.normalized, eps=case.eps)
    return {"mean": forward.mean, "rstd": forward.rstd}


def uncentred(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    x = np.asarray(inputs.x).astype(np.float64)
    return {"rstd": 1 / np.sqrt((x**2).mean(axes, keepdims=True) + case.eps)}


def cancelled(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    axes = tuple(range(inputs.x.ndim - inputs.normalized, inputs.x.ndim))
    x = np.asarray(inputs.x).astype(np.float32)
    mean = x.mean(axes, keepdims=True, dtype=np.float32)
    variance = (x * x).mean(axes, keepdims=True, dtype=np.float32) - mean * mean
    return {"rstd": 1 / np.sqrt(np.maximum(variance, 0).astype(np.float64) + case.eps)}


def transposed(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    lead = inputs.x.shape[: inputs.x.ndim - inputs.normalized]
    if sum(size > 1 for size in lead) < 2:
        return None
    turn = [np.asarray(one, np.float64).reshape(lead).T.reshape(-1) for one in (inputs.mean, inputs.rstd)]
    return {"mean": turn[0], "rstd": turn[1]}


def swapped(case: CheckCase, inputs: Inputs) -> dict[str, Any]:
    return {"mean": inputs.rstd, "rstd": inputs.mean}


def next_row(case: CheckCase, inputs: Inputs) -> dict[str, Any] | None:
    rows = _rows(inputs.dy, inputs)
    return None if len(rows) < 2 else {"dy": np.roll(rows, -1, axis=0).reshape(inputs.x.shape)}


def _dx_of(rstd: Any, dxhat: Any, xhat: Any, first: Any, second: Any) -> dict[str, Any]:
    return {"dx": rstd * (dxhat - first - xhat * second)}


def sums_for_means(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    first, second = dxhat.sum(1, keepdims=True), (dxhat * xhat).sum(1, keepdims=True)
    return None if dy.shape[1] < 2 else _dx_of(rstd, dxhat, xhat, first, second)


def rstd_missing(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return {"dx": true.dx.reshape(dy.shape) / rstd}


def means_over(which: str) -> Wrong:
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

    return with_results(make)


def extra_term(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    # pd_var·(1/H)·Σ(-2(x - mean)), divided by H: zero where mean is the row's mean.
    pd_var = -0.5 * (dxhat * xhat).sum(1, keepdims=True) * rstd**2
    extra = pd_var * (-2 * xhat / rstd).mean(1, keepdims=True) / dy.shape[1]
    return {"dx": true.dx.reshape(dy.shape) + extra}


def _sums(case: Any, dy: Any, xhat: Any, weight: Any) -> dict[str, Any]:
    weight = np.asarray(weight, np.float64).reshape(-1, 1)
    return {"dgamma": (dy * xhat * weight).sum(0), "dbeta": (dy * weight).sum(0)}


def last_rows(part: int, factor: float) -> Wrong:
    """The last `part` rows, or what remains behind whole parts, counted `factor` times."""

    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        tail = len(dy) % part or part
        if tail >= len(dy):
            return None
        weight = np.ones(len(dy))
        weight[-tail:] = factor
        return _sums(case, dy, xhat, weight)

    return with_results(make)


def narrow_sums(dtype: str, parts: int = 1) -> Wrong:
    """Column sums kept in a 16-bit dtype, in `parts` equal blocks of rows, as many threads keep them."""

    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        narrow, step = numpy_dtype(dtype), -(-len(dy) // parts)
        if parts > len(dy):
            return None
        whole = np.zeros((2, dy.shape[1]))
        for start in range(0, len(dy), step):
            totals = np.zeros((2, dy.shape[1]), narrow)
            block = slice(start, start + step)
            for row, product in zip(dy[block], (dy * xhat)[block], strict=True):
                totals = (totals.astype(np.float64) + np.stack([product, row])).astype(narrow)
            whole += totals.astype(np.float64)
        return {"dgamma": whole[0], "dbeta": whole[1]}

    return with_results(make)


def sums_swapped(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return {"dgamma": true.dbeta, "dbeta": true.dgamma}


def without_mean(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    x = np.asarray(inputs.x).astype(np.float64).reshape(dy.shape)
    return {"dgamma": (dy * x * rstd).sum(0)}


def gamma_in_sums(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
    return None if inputs.gamma is None else {"dgamma": (dxhat * xhat).sum(0), "dbeta": dxhat.sum(0)}


def last_columns(width: int) -> Wrong:
    """Everything behind the last whole tile of `width` columns stays zero."""

    def make(case: Any, inputs: Any, dy: Any, xhat: Any, dxhat: Any, rstd: Any, true: Any) -> Any:
        tail = dy.shape[1] % width
        if not tail or tail == dy.shape[1]:
            return None
        results = {name: np.array(one).reshape(-1, dy.shape[1]) for name, one in zip(Grads._fields, true, strict=True)}
        for one in results.values():
            one[:, -tail:] = 0
        return results

    return with_results(make)


_DIGITS = {"float16": 11, "bfloat16": 8}


def half_away(case: CheckCase, given: Given) -> Grads | None:
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
