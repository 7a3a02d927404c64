"""The rstd that a wrong dx was computed with, recovered row by row: what it has in common with the given one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lngrad.check.mistakes.another_statistic import FEWEST, STEPS, dx_with, most_left, roundings, size_of_rest
from lngrad.check.mistakes.formula import Difference
from lngrad.check.mistakes.terms import Terms
from lngrad.testing import Inputs
from lngrad.typing import Array


def another_rstd(terms: Terms, inputs: Inputs, dx: Array, bound: Array) -> Iterator[tuple[Inputs, Difference]]:
    """The inputs with another rstd that dx may have used, and the difference in words, the simplest first.

    Args:
        terms: Of the inputs.
        inputs: As they should have been used.
        dx, bound: (rows, N) in float64: as it came, and the error that a right one may have.
    """
    if terms.N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd > 0).all():
        return
    found, error = _recovered(terms, dx, bound)
    given = terms.rstd[:, 0]
    if not (found > 0).all() or (np.abs(found - given) <= error).all():
        return
    most = most_left(terms, dx, bound)
    for rstd, difference in _candidates(given, found, error):
        if size_of_rest(dx, dx_with(terms, rstd[:, None]), bound) <= most:
            yield replace(inputs, rstd=rstd.reshape(inputs.rstd.shape)), difference


def _candidates(given: Array, found: Array, error: Array) -> Iterator[tuple[Array, Difference]]:
    yield from roundings("rstd", given)
    weight = 1 / np.maximum(error, 1e-300)
    for way in _WAYS:
        slope = np.maximum(np.abs(way.of(given * 1.0001) - way.of(given)) / (given * 1e-4), 1e-300)
        apart = float(np.average(way.of(found) - way.of(given), weights=(weight / slope) ** 2))
        yield way.back(way.of(given) + apart), way.difference(apart)
    if len(given) >= 2:
        ratio, row = found / given, int(np.argmax(np.abs(found - given) * weight))
        text = (
            f"the result has another rstd, {ratio.min():.5g} to {ratio.max():.5g} times the given one (in row {row} "
            f"{found[row]:.6g} for {given[row]:.6g}): an approximate root, a rounding, or statistics of other elements."
        )
        yield found, Difference("another rstd", text)


@dataclass(frozen=True)
class _Way:
    """A function of rstd that is off by one number in all rows, and its inverse."""

    of: Callable[[Array], Array]
    back: Callable[[Array], Array]
    difference: Callable[[float], Difference]


def _factor(apart: float) -> Difference:
    text = f"{np.exp(apart):.4g} times"
    return Difference(f"rstd {text}", f"the result has {text} the given rstd in every row.")


def _eps(apart: float) -> Difference:
    return Difference("another eps", f"the variance under the root is {apart:+.3g} off in every row: another eps, or eps "
                                     "added twice or not at all.")  # fmt: skip


def _deviation(apart: float) -> Difference:
    return Difference("eps outside the root", f"the standard deviation is {apart:+.3g} off in every row: what is added to it "
                                              "belongs under the root.")  # fmt: skip


_WAYS = (
    _Way(np.log, np.exp, _factor),
    _Way(lambda rstd: rstd**-2.0, lambda variance: np.maximum(variance, 1e-300) ** -0.5, _eps),
    _Way(lambda rstd: 1 / rstd, lambda deviation: 1 / np.maximum(deviation, 1e-300), _deviation),
)


def _recovered(terms: Terms, dx: Array, bound: Array) -> tuple[Array, Array]:
    """(rstd of each row, its error): dx = r·u − r³·v, with u and v known."""
    centred = terms.x - terms.mean
    u = terms.dxhat - terms.dxhat.mean(1, keepdims=True)
    v = centred * (terms.dxhat * centred).mean(1, keepdims=True)
    weight = 1 / np.maximum(bound, 1e-12 * np.abs(dx).max(1, keepdims=True) + 1e-300)
    r = terms.rstd
    for _ in range(STEPS):
        slope = (u - 3 * r**2 * v) * weight
        left = (dx - r * u + r**3 * v) * weight
        size = np.maximum(np.square(slope).sum(1, keepdims=True), 1e-300)
        r = r + (slope * left).sum(1, keepdims=True) / size
    return r[:, 0], 4 / np.sqrt(size[:, 0])
