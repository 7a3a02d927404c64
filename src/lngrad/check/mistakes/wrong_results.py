"""Mistakes in how gradients are computed from right inputs: terms, sums, tiles and roundings.

Each takes the case, its inputs, their terms and the right gradients in float64; it returns the gradients that change, by
name, or None where the mistake makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.mistakes.terms import Terms
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.problem import Grads
from lngrad.testing import Inputs
from lngrad.typing import Array

Make: TypeAlias = "Callable[[CheckCase, Inputs, Terms, Grads], dict[str, Array] | None]"
MOST_SEQUENTIAL = 8192  # rows that are added one by one in Python


def _dx(terms: Terms, first: Array, second: Array) -> dict[str, Array]:
    return {"dx": terms.rstd * (terms.dxhat - first - terms.xhat * second)}


def _means(terms: Terms) -> tuple[Array, Array]:
    return terms.dxhat.mean(1, keepdims=True), (terms.dxhat * terms.xhat).mean(1, keepdims=True)


def means_missing(first: float, second: float) -> Make:
    """Each of the two row means, times a factor."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
        means = _means(terms)
        return _dx(terms, first * means[0], second * means[1])

    return make


def sums_for_means(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
    means = _means(terms)
    return None if terms.N < 2 else _dx(terms, terms.N * means[0], terms.N * means[1])


def rstd_missing(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    return {"dx": true.dx.reshape(terms.dy.shape) / terms.rstd}


def gamma_by_row(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
    if inputs.gamma is None or terms.M < 2:
        return None
    dxhat = terms.dy * terms.gamma[0, np.arange(terms.M) % terms.N][:, None]
    second = (dxhat * terms.xhat).mean(1, keepdims=True)
    return {"dx": terms.rstd * (dxhat - dxhat.mean(1, keepdims=True) - terms.xhat * second)}


def means_over(which: str) -> Make:
    """Both means over the last axis, over the rows, or over all."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        product = terms.dxhat * terms.xhat
        if which == "last":
            R = terms.normalized
            if len(R) < 2 or R[:-1] == (1,) * (len(R) - 1):
                return None
            first, second = (
                np.repeat(one.reshape(terms.M, -1, R[-1]).mean(2), R[-1], axis=1) for one in (terms.dxhat, product)
            )
            return _dx(terms, first, second)
        if terms.M < 2:
            return None
        axes = (0,) if which == "rows" else (0, 1)
        return _dx(terms, terms.dxhat.mean(axes, keepdims=True), product.mean(axes, keepdims=True))

    return make


def extra_term(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    # pd_var·(1/H)·Σ(-2(x - mean)), divided by H: zero where mean is the row's mean.
    pd_var = -0.5 * (terms.dxhat * terms.xhat).sum(1, keepdims=True) * terms.rstd**2
    extra = pd_var * (-2 * terms.xhat / terms.rstd).mean(1, keepdims=True) / terms.N
    return {"dx": true.dx.reshape(terms.dy.shape) + extra}


def narrow_means(dtype: str) -> Make:
    """Both row means rounded to 16 bits before they are used."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
        first, second = (one.astype(numpy_dtype(dtype)).astype(np.float64) for one in _means(terms))
        return _dx(terms, first, second)

    return make


def last_rows(part: int, factor: float) -> Make:
    """The last `part` rows, or what remains after whole parts, counted `factor` times."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        tail = terms.M % part or part
        if tail >= terms.M:
            return None
        weight = np.ones((terms.M, 1))
        weight[-tail:] = factor
        return {"dgamma": (terms.dy * terms.xhat * weight).sum(0), "dbeta": (terms.dy * weight).sum(0)}

    return make


def narrow_sums(dtype: str, parts: int = 1, block: int = 0, products: bool = False) -> Make:
    """Column sums kept in a 16-bit dtype, in `parts` equal blocks of rows, as threads keep them, or in blocks of so many.

    Args:
        dtype: The narrow one.
        parts, block: How rows are cut; block counts where it is not 0.
        products: Whether the products, too, are rounded before they are added.
    """

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        narrow, step = numpy_dtype(dtype), block or -(-terms.M // parts)
        if parts > terms.M or block > terms.M or min(step, terms.M) > MOST_SEQUENTIAL:
            return None
        added = np.stack([terms.dy * terms.xhat, terms.dy], axis=1)
        if products:
            added = added.astype(np.float32).astype(narrow).astype(np.float64)
        blocks = -(-terms.M // step)
        padded = np.zeros((blocks * step, *added.shape[1:]))  # an added zero changes no sum
        padded[: terms.M] = added
        totals = np.zeros((blocks, *added.shape[1:]), narrow)
        for row in padded.reshape(blocks, step, *added.shape[1:]).swapaxes(0, 1):
            totals = (totals.astype(np.float64) + row).astype(narrow)
        whole = totals.astype(np.float64).sum(0)
        return {"dgamma": whole[0], "dbeta": whole[1]}

    return make


def narrow_factor(dtype: str, which: str) -> Make:
    """dxhat or xhat rounded to 16 bits before dx is computed from it."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
        dxhat, xhat = (
            one.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64) if which == name else one
            for name, one in (("dxhat", terms.dxhat), ("xhat", terms.xhat))
        )
        first, second = dxhat.mean(1, keepdims=True), (dxhat * xhat).mean(1, keepdims=True)
        return {"dx": terms.rstd * (dxhat - first - xhat * second)}

    return make


def narrow_xhat(dtype: str) -> Make:
    """xhat rounded to 16 bits before dx and dgamma are computed from it."""
    in_dx = narrow_factor(dtype, "xhat")

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        xhat = terms.xhat.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
        dx = in_dx(case, inputs, terms, true)
        return None if dx is None else {**dx, "dgamma": (terms.dy * xhat).sum(0)}

    return make


def narrow_products(dtype: str) -> Make:
    """xhat and dy·xhat rounded to 16 bits, then summed in full."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
        narrow = numpy_dtype(dtype)
        xhat = terms.xhat.astype(np.float32).astype(narrow).astype(np.float64)
        return {"dgamma": (terms.dy * xhat).astype(np.float32).astype(narrow).astype(np.float64).sum(0)}

    return make


def sums_doubled(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    return {"dgamma": 2 * true.dgamma, "dbeta": 2 * true.dbeta}


def sums_swapped(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    return {"dgamma": true.dbeta, "dbeta": true.dgamma}


def without_mean(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    return {"dgamma": (terms.dy * terms.x * terms.rstd).sum(0)}


def gamma_in_sums(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
    return None if inputs.gamma is None else {"dgamma": (terms.dxhat * terms.xhat).sum(0), "dbeta": terms.dxhat.sum(0)}


def uncentred_xhat(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array]:
    """xhat as x·rstd + b with b = −mean·rstd in float32, fused: what b's rounding loses stays."""
    bias = (-terms.mean * terms.rstd).astype(np.float32)
    xhat = (terms.x * terms.rstd + bias).astype(np.float32).astype(np.float64)
    second = (terms.dxhat * xhat).mean(1, keepdims=True)
    dx = terms.rstd * (terms.dxhat - terms.dxhat.mean(1, keepdims=True) - xhat * second)
    return {"dx": dx, "dgamma": (terms.dy * xhat).sum(0)}


def xhat_from_output(tile: int) -> Make:
    """xhat as (y − beta)/gamma, with the gamma of the row's place in a tile in place of the column's."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        if inputs.gamma is None or terms.N < 2:
            return None
        other = terms.gamma[0, (np.arange(terms.M) % tile) % terms.N][:, None]
        return {"dgamma": (terms.dy * terms.xhat * terms.gamma / other).sum(0)}

    return make


def columns_lost(width: int) -> Make:
    """All that comes after the last whole tile of `width` columns stays zero; width 0: the last column of dx."""

    def make(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
        N = terms.N
        tail = N % width if width else 1
        if width and (not tail or tail == N):
            return None
        names = Grads._fields if width else ("dx",)
        results = {name: np.array(getattr(true, name)).reshape(-1, N) for name in names}
        for one in results.values():
            one[:, -tail:] = 0
        return results

    return make


_DIGITS = {"float16": 11, "bfloat16": 8}


def half_away(case: CheckCase, inputs: Inputs, terms: Terms, true: Grads) -> dict[str, Array] | None:
    """Ties rounded away from zero."""
    if not set(case.output_dtypes) & set(_DIGITS):
        return None
    rounded = {}
    for name, one, dtype in zip(Grads._fields, true, case.output_dtypes, strict=True):
        if dtype in _DIGITS:
            with np.errstate(invalid="ignore", over="ignore"):
                mantissa, exponent = np.frexp(one.astype(np.float32).astype(np.float64))
                whole = np.copysign(np.floor(np.abs(np.ldexp(mantissa, _DIGITS[dtype])) + 0.5), mantissa)
                rounded[name] = np.ldexp(whole, exponent - _DIGITS[dtype])
    return rounded
