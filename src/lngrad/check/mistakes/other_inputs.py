"""Inputs that a wrong dx may have been computed from, recovered from it: those of other rows, another rstd, another mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.mistakes.fit import (
    EXPLAINED,
    MAX_SQUARES_LEFT,
    MIN_ELEMENTS,
    SLACK,
    TINY,
    Difference,
    Fit,
    Terms,
    dx_of,
)  # fmt: skip
from lngrad.check.mistakes.sum_weights import maps_through, spread
from lngrad.core.dtypes import numpy_dtype
from lngrad.testing import Inputs
from lngrad.typing import Array

MAX_PAIRS = 1 << 22  # elements that are looked at, of one wrong row beside all others
NEWTON_STEPS = 4
Candidates = Iterator[tuple[Inputs, Difference]]
# Inputs that one wrong index is known to reach: (what the mistake is called, in words, which they are).
TOGETHER = (
    ("statistics of other rows", "the mean and rstd", ("mean", "rstd")),
    ("rstd of other rows", "the rstd", ("rstd",)),
    ("mean of other rows", "the mean", ("mean",)),
    ("dy of other rows", "the dy", ("dy",)),
    ("x of other rows", "the x", ("x",)),
)


def inputs_of_other_rows(fit: Fit, inputs: Inputs) -> Candidates:
    """The inputs that wrong rows of dx may have used, and the difference in words, the likeliest first."""
    t, (M, N) = fit.terms, fit.result.shape
    wrong = np.flatnonzero((np.abs(fit.result - fit.true) > SLACK * fit.bound).mean(1) > 1 - EXPLAINED)
    if M < 2 or not len(wrong) or M * N > MAX_PAIRS or N < 4:
        return
    for name, what, which in TOGETHER:
        pairs = [(row, _sources_of(fit, row, which)) for row in map(int, spread(wrong))]
        for text, used, where in _uses(pairs, wrong, t) if all(sources for _, sources in pairs) else ():
            read: dict[str, Any] = {one: getattr(t, one)[used].reshape(getattr(inputs, one).shape) for one in which}
            are, their = ("they are", "their") if len(which) > 1 else ("it is", "its")
            yield (
                replace(inputs, **read),
                Difference(
                    name,
                    f"{where} use {what} {text}: {are} not loaded anew for the tile, or {their} index is not the row's.",
                ),
            )


def _uses(pairs: list[tuple[int, set[int]]], wrong: Array, t: Terms) -> Iterator[tuple[str, Array, str]]:
    """(in words, the row that each row uses, which rows): a rule for all rows, where most are wrong, or for the wrong ones."""
    for text, whose in maps_through(pairs, t.M, t.lead, "row"):
        if 2 * len(wrong) > t.M:
            yield text, whose, "all rows"
        some = np.arange(t.M)
        some[wrong] = whose[wrong]
        yield text, some, _which(wrong, t.M)


def _sources_of(fit: Fit, row: int, which: tuple[str, ...]) -> set[int]:
    """The rows whose inputs may have given this row of dx."""
    t = fit.terms
    mean, rstd, dy, x = (
        getattr(t, name)[slice(None) if name in which else slice(row, row + 1)] for name in ("mean", "rstd", "dy", "x")
    )
    made = dx_of(dy * t.gamma, (x - mean) * rstd, rstd)
    scale = np.maximum(1.0, rstd / t.rstd[row])
    fits = (np.abs(made - fit.result[row]) <= SLACK * fit.bound[row] * scale).mean(1)
    return {*map(int, np.flatnonzero(fits >= EXPLAINED))} - {row}


def _which(wrong: Array, M: int) -> str:
    first, last = int(wrong[0]), int(wrong[-1])
    if len(wrong) != last - first + 1:
        return f"{len(wrong)} of {M} rows, from {first} on,"
    if last == M - 1:
        return f"the last {len(wrong)} rows (from {first} on)"
    return f"rows {first} to {last}" if first != last else f"row {first}"


def another_rstd(fit: Fit, inputs: Inputs) -> Candidates:
    """The inputs with another rstd that dx may have used, and the difference in words, the simplest first."""
    t, given = fit.terms, fit.terms.rstd[:, 0]
    if not _is_usable(fit):
        return
    found, error = _rstd_of(fit)
    if not (found > 0).all() or (np.abs(found - given) <= error).all():
        return
    most = _max_left(fit)
    for rstd, difference in _other_rstds(given, found, error):
        if fit.squares_left(_dx_with_rstd(t, rstd[:, None])) <= most:
            yield replace(inputs, rstd=rstd.reshape(inputs.rstd.shape)), difference


def another_mean(fit: Fit, inputs: Inputs) -> Candidates:
    """The inputs with another mean that dx may have used, and the difference in words, the simplest first."""
    t, given = fit.terms, fit.terms.mean[:, 0]
    if not _is_usable(fit):
        return
    apart, error = _mean_apart(fit)
    if not np.isfinite(apart).all() or (np.abs(apart) <= error).all():
        return
    most = _max_left(fit)
    for mean, difference in _other_means(given, apart, error):
        if fit.squares_left(_dx_with_xhat_off(t, (mean[:, None] - t.mean) * t.rstd)) <= most:
            yield replace(inputs, mean=mean.reshape(inputs.mean.shape)), difference


def _is_usable(fit: Fit) -> bool:
    return fit.terms.N >= MIN_ELEMENTS and fit.is_finite and bool((fit.terms.rstd > 0).all())


def _max_left(fit: Fit) -> float:
    """How much of the error another statistic may leave: part of it, and less than a free number in a row mean."""
    t, weight = fit.terms, 1 / np.maximum(fit.bound, TINY)
    apart = (fit.result - _dx_with_rstd(t, t.rstd)) * weight
    most = [MAX_SQUARES_LEFT * float(np.square(apart).sum())]
    for shape in (t.rstd * np.ones_like(fit.result), t.rstd * t.xhat):
        one = shape * weight
        free = (apart * one).sum(1, keepdims=True) / np.maximum(np.square(one).sum(1, keepdims=True), TINY)
        most.append(float(np.square(apart - free * one).sum()))
    return min(most)


def _dx_with_rstd(t: Terms, rstd: Array) -> Array:
    return dx_of(t.dxhat, (t.x - t.mean) * rstd, rstd)


def _dx_with_xhat_off(t: Terms, e: Array) -> Array:
    """dx with xhat − e in xhat's place, e one number a row."""
    first, second = t.means
    return np.asarray(t.rstd * (t.dxhat - first - (t.xhat - e) * (second - e * first)))


def _weight(fit: Fit) -> Array:
    return np.asarray(1 / np.maximum(fit.bound, 1e-12 * np.abs(fit.result).max(1, keepdims=True) + TINY))


def _rstd_of(fit: Fit) -> tuple[Array, Array]:
    """(rstd of each row, its error): dx = r·u − r³·v, with u and v known."""
    t, weight = fit.terms, _weight(fit)
    centred = t.x - t.mean
    u = t.dxhat - t.means[0]
    v = centred * (t.dxhat * centred).mean(1, keepdims=True)
    r = t.rstd
    for _ in range(NEWTON_STEPS):
        slope = (u - 3 * r**2 * v) * weight
        left = (fit.result - r * u + r**3 * v) * weight
        size = np.maximum(np.square(slope).sum(1, keepdims=True), TINY)
        r = r + (slope * left).sum(1, keepdims=True) / size
    return r[:, 0], 4 / np.sqrt(size[:, 0])


def _mean_apart(fit: Fit) -> tuple[Array, Array]:
    """(how far each row's mean is off, to which that is known)."""
    t, weight = fit.terms, _weight(fit)
    first, second = t.means
    e = np.zeros_like(t.mean)
    for _ in range(NEWTON_STEPS):
        slope = t.rstd * (second - e * first + (t.xhat - e) * first) * weight
        size = np.maximum(np.square(slope).sum(1, keepdims=True), TINY)
        e = e + (slope * (fit.result - _dx_with_xhat_off(t, e)) * weight).sum(1, keepdims=True) / size
    return (e / t.rstd)[:, 0], (4 / np.sqrt(size) / t.rstd)[:, 0]


def _roundings(name: str, given: Array) -> Iterator[tuple[Array, Difference]]:
    """A statistic of each row as 16 bits hold it, and the difference in words."""
    for dtype in ("bfloat16", "float16"):
        narrow = given.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
        text = f"{name} is rounded to {dtype} before it is used: keep it in float32."
        yield narrow, Difference(f"{name} rounded to {dtype}", text)


# A function of rstd that is off by one number in all rows, its inverse, and the mistake's name and sentence.
_Function = Callable[[Array], Array]
_WAYS: tuple[tuple[_Function, _Function, Callable[[float], tuple[str, str]]], ...] = (
    (np.log, np.exp, lambda apart: (
        f"rstd {np.exp(apart):.4g} times", f"the result has {np.exp(apart):.4g} times the given rstd in every row.")),
    (lambda rstd: rstd**-2.0, lambda variance: np.maximum(variance, TINY) ** -0.5, lambda apart: (
        "another eps",
        f"the variance under the root is {apart:+.3g} off in every row: another eps, or eps added twice or not at all.")),
    (lambda rstd: 1 / rstd, lambda deviation: 1 / np.maximum(deviation, TINY), lambda apart: (
        "eps outside the root",
        f"the standard deviation is {apart:+.3g} off in every row: what is added to it belongs under the root.")),
)  # fmt: skip


def _other_rstds(given: Array, found: Array, error: Array) -> Iterator[tuple[Array, Difference]]:
    yield from _roundings("rstd", given)
    weight = 1 / np.maximum(error, TINY)
    for of, back, words in _WAYS:
        slope = np.maximum(np.abs(of(given * 1.0001) - of(given)) / (given * 1e-4), TINY)
        apart = float(np.average(of(found) - of(given), weights=(weight / slope) ** 2))
        yield back(of(given) + apart), Difference(*words(apart))
    if len(given) >= 2:
        ratio, row = found / given, int(np.argmax(np.abs(found - given) * weight))
        yield (
            found,
            Difference(
                "another rstd",
                f"the result has another rstd, {ratio.min():.5g} to {ratio.max():.5g} times the given one (in row {row} "
                f"{found[row]:.6g} for {given[row]:.6g}): an approximate root, a rounding, or statistics of other elements.",
            ),
        )


def _other_means(given: Array, apart: Array, error: Array) -> Iterator[tuple[Array, Difference]]:
    yield from _roundings("mean", given)
    weight = 1 / np.maximum(error, TINY) ** 2
    offset = float(np.average(apart, weights=weight))
    yield (
        given + offset,
        Difference("mean off by a constant", f"the mean that is subtracted is {offset:+.4g} off in every row."),
    )
    size = float(np.sum(given**2 * weight))
    if size > 0:
        factor = 1 + float(np.sum(given * apart * weight)) / size
        yield (
            factor * given,
            Difference(
                f"mean {factor:.3g} times",
                f"the mean that is subtracted is {factor:.4g} times the given one in every row.",
            ),
        )
    if len(given) >= 2:
        row = int(np.argmax(np.abs(apart) * np.sqrt(weight)))
        yield (
            given + apart,
            Difference(
                "another mean",
                f"the result has another mean (in row {row} {given[row] + apart[row]:.6g} for {given[row]:.6g}): a rounding, "
                "or statistics of other elements.",
            ),
        )
