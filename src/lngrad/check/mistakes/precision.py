"""Changes of precision: what is rounded too early, kept too narrow, or rounded in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from lngrad.check.mistakes.changes import Changes, ExactCase, with_xhat
from lngrad.check.mistakes.fit import narrowed, row_sum, wide
from lngrad.core.problem import Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array

MAX_SEQUENTIAL = 8192  # rows, or columns, that are added one by one in Python
OF_DGAMMA = {"xhat of dgamma", "dy·xhat"}
DIGITS = {"float16": 11, "bfloat16": 8}


def _added(terms: Array, dtype: str, through: type = np.float64) -> Array:
    """The terms along the first axis, added one by one; each sum is rounded to `through`, and then to a narrow dtype."""
    totals = np.zeros(terms.shape[1:], numpy_dtype(dtype))
    for term in terms:
        totals = (totals.astype(np.float64) + term).astype(through).astype(totals.dtype)
    return totals.astype(np.float64)


def rounded(call: ExactCase, *places: str, dtype: str) -> Changes:
    """The right formulas of dx and dgamma, with what stands at some places rounded; only the results that have one of them.

    Args:
        places: Of dx dxhat, xhat, products (dxhat·xhat before their mean), terms (of both row sums), sums, means, bracket (what
            rstd multiplies) and norm (what dtotal is added to); of dgamma "xhat of dgamma" and "dy·xhat".
    """
    t = call.terms
    if "norm" in places and call.inputs.dtotal is None:
        return None

    def at(place: str, value: Array) -> Array:
        return narrowed(value, dtype) if place in places else value

    def mean(one: Array) -> Array:
        return at("means", at("sums", row_sum(at("terms", one))) / t.N)

    dxhat, xhat = at("dxhat", t.dxhat), at("xhat", t.xhat)
    first = mean(dxhat) if t.normalization.centred else 0.0
    bracket = at("bracket", dxhat - first - xhat * mean(at("products", dxhat * xhat)))
    made = {"dx": at("norm", t.rstd * bracket) + t.dtotal}
    sums = {"dgamma": at("dy·xhat", t.dy * at("xhat of dgamma", t.xhat)).sum(0)}
    return (made if {*places} - OF_DGAMMA else {}) | (sums if {*places} & OF_DGAMMA else {})


def uncentred_xhat(call: ExactCase) -> Changes:
    """xhat as x·rstd + b with b = −mean·rstd in float32, fused: what b's rounding loses stays."""
    t = call.terms
    bias = (-t.mean * t.rstd).astype(np.float32)
    return with_xhat(call, (t.x * t.rstd + bias).astype(np.float32).astype(np.float64))


def narrow_sums(call: ExactCase, products: bool = False, *, dtype: str, parts: int = 1, block: int = 0) -> Changes:
    """Column sums kept in a 16-bit dtype, in `parts` equal blocks of rows, as threads keep them, or in blocks of so many.

    Args:
        dtype: The narrow one.
        parts, block: How rows are cut; block counts where it is not 0.
        products: Whether the products, too, are rounded before they are added.
    """
    t = call.terms
    step = block or max(-(-t.M // parts), 1)
    blocks = -(-t.M // step)
    if block > t.M or min(step, t.M) > MAX_SEQUENTIAL or (not block and (blocks != parts or (parts > 1 and step < 2))):
        return None
    added = np.stack([t.dy * t.xhat, t.dy], axis=1)
    if products:
        added = narrowed(added, dtype)
    padded = np.zeros((blocks * step, *added.shape[1:]))  # an added zero changes no sum
    padded[: t.M] = added
    whole = _added(padded.reshape(blocks, step, *added.shape[1:]).swapaxes(0, 1), dtype).sum(0)
    return {"dgamma": whole[0], "dbeta": whole[1]}


def narrow_sums_of_blocks(call: ExactCase, each: bool, dtype: str, block: int) -> Changes:
    """The sums of blocks of so many rows, added in a narrow dtype: each one rounded before, or with what it is added to."""
    t = call.terms
    starts = np.arange(0, t.M, block)
    if not 2 <= len(starts) <= MAX_SEQUENTIAL:
        return None
    parts = np.add.reduceat(np.stack([t.dy * t.xhat, t.dy], axis=1), starts, axis=0)
    dgamma, dbeta = _added(narrowed(parts, dtype) if each else parts, dtype, np.float64 if each else np.float32)
    return {"dgamma": dgamma, "dbeta": dbeta}


def narrow_sum(call: ExactCase, only: str, products: bool, dtype: str) -> Changes:
    """One of the two column sums in a narrow dtype."""
    made = narrow_sums(call, products, dtype=dtype)
    return None if made is None else {only: made[only]}


def narrow_groups(call: ExactCase, dtype: str, groups: int) -> Changes:
    """Rounded products added in a narrow dtype, in so many groups of every groups-th row."""
    t = call.terms
    if groups >= t.M or t.M // groups > MAX_SEQUENTIAL:
        return None
    added = narrowed(np.stack([t.dy * t.xhat, t.dy], axis=1), dtype)
    rows = np.concatenate([added, np.zeros((-t.M % groups, *added.shape[1:]))]).reshape(-1, groups, *added.shape[1:])
    dgamma, dbeta = _added(rows, dtype).sum(0)
    return {"dgamma": dgamma, "dbeta": dbeta}


def narrow_row_sums(call: ExactCase, dtype: str) -> Changes:
    """The row sums, and what they add, in a narrow dtype, column by column."""
    t = call.terms
    if not 2 <= t.N <= MAX_SEQUENTIAL:
        return None
    added = np.stack([narrowed(one, dtype) for one in t.averaged])
    first, second = _added(np.moveaxis(added, 2, 0), dtype)[..., None] / t.N
    return {"dx": t.dx(first, second)}


# Of results.


def _cut(call: ExactCase, names: Sequence[str], whole: Callable[[Array], Array]) -> Changes:
    """Results of 16 bits whose digits are made whole numbers by a function."""
    cut = {}
    for name, one, dtype in zip(Grads._fields, call.true, call.case.output_dtypes, strict=True):
        if dtype in DIGITS and name in names:
            mantissa, exponent = np.frexp(one.astype(np.float32).astype(np.float64))
            cut[name] = np.ldexp(whole(np.ldexp(mantissa, DIGITS[dtype])), exponent - DIGITS[dtype])
    return cut or None


def truncated(call: ExactCase, *names: str) -> Changes:
    """16-bit results cut to their digits, towards zero."""
    return _cut(call, names or Grads._fields, np.trunc)


def half_away(call: ExactCase) -> Changes:
    """Ties rounded away from zero."""
    return _cut(call, Grads._fields, lambda one: np.copysign(np.floor(np.abs(one) + 0.5), one))


def _flushed(array: Array, dtype: str) -> Array:
    return np.where(np.abs(array) < float(ml_dtypes.finfo(numpy_dtype(dtype)).smallest_normal), 0.0, array)


def flushed_results(call: ExactCase, *names: str) -> Changes:
    """What is smaller than the smallest normal number of its dtype is zero."""
    made = {
        name: _flushed(one, dtype)
        for name, one, dtype in zip(Grads._fields, call.true, call.case.output_dtypes, strict=True)
        if not names or name in names
    }
    return made if any((made[name] != getattr(call.true, name)).any() for name in made) else None


def flushed_inputs(call: ExactCase) -> Changes:
    made = {}
    for name in ("dy", "x", "gamma"):
        array = getattr(call.inputs, name)
        if array is not None:
            one = wide(array)
            made[name] = _flushed(one, np.asarray(array).dtype.name)
            if (made[name] == one).all():
                del made[name]
    return made or None
