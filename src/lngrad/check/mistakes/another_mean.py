"""The mean that a wrong dx was computed with, recovered row by row: what it has in common with the given one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lngrad.check.mistakes.another_statistic import FEWEST, STEPS, most_left, roundings, size_of_rest
from lngrad.check.mistakes.formula import Difference
from lngrad.check.mistakes.terms import Terms
from lngrad.testing import Inputs
from lngrad.typing import Array


def another_mean(terms: Terms, inputs: Inputs, dx: Array, bound: Array) -> Iterator[tuple[Inputs, Difference]]:
    """The inputs with another mean that dx may have used, and the difference in words, the simplest first.

    Args:
        terms: Of the inputs.
        inputs: As they should have been used.
        dx, bound: (rows, N) in float64: as it came, and the error that a right one may have.
    """
    if terms.N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd > 0).all():
        return
    apart, error = _recovered(terms, dx, bound)
    if not np.isfinite(apart).all() or (np.abs(apart) <= error).all():
        return
    most = most_left(terms, dx, bound)
    for mean, difference in _candidates(terms.mean[:, 0], apart, error):
        if size_of_rest(dx, _made(terms, (mean[:, None] - terms.mean) * terms.rstd), bound) <= most:
            yield replace(inputs, mean=mean.reshape(inputs.mean.shape)), difference


def _candidates(given: Array, apart: Array, error: Array) -> Iterator[tuple[Array, Difference]]:
    yield from roundings("mean", given)
    weight = 1 / np.maximum(error, 1e-300) ** 2
    offset = float(np.average(apart, weights=weight))
    yield (
        given + offset,
        Difference("mean off by a constant", f"the mean that is subtracted is {offset:+.4g} off in every row."),
    )
    size = float(np.sum(given**2 * weight))
    if size > 0:
        factor = 1 + float(np.sum(given * apart * weight)) / size
        yield factor * given, Difference(f"mean {factor:.3g} times", f"the mean that is subtracted is {factor:.4g} times the "
                                         "given one in every row.")  # fmt: skip
    if len(given) >= 2:
        row = int(np.argmax(np.abs(apart) * np.sqrt(weight)))
        text = (
            f"the result has another mean (in row {row} {given[row] + apart[row]:.6g} for {given[row]:.6g}): a rounding, or "
            "statistics of other elements."
        )
        yield given + apart, Difference("another mean", text)


def _made(terms: Terms, e: Array) -> Array:
    """dx with xhat − e in xhat's place, e one number a row."""
    first, second = terms.dxhat.mean(1, keepdims=True), (terms.dxhat * terms.xhat).mean(1, keepdims=True)
    return np.asarray(terms.rstd * (terms.dxhat - first - (terms.xhat - e) * (second - e * first)))


def _recovered(terms: Terms, dx: Array, bound: Array) -> tuple[Array, Array]:
    """(how far each row's mean is off, to which that is known)."""
    first, second = terms.dxhat.mean(1, keepdims=True), (terms.dxhat * terms.xhat).mean(1, keepdims=True)
    weight = 1 / np.maximum(bound, 1e-12 * np.abs(dx).max(1, keepdims=True) + 1e-300)
    e = np.zeros_like(terms.mean)
    for _ in range(STEPS):
        slope = terms.rstd * (second - e * first + (terms.xhat - e) * first) * weight
        size = np.maximum(np.square(slope).sum(1, keepdims=True), 1e-300)
        e = e + (slope * (dx - _made(terms, e)) * weight).sum(1, keepdims=True) / size
    return (e / terms.rstd)[:, 0], (4 / np.sqrt(size) / terms.rstd)[:, 0]
