"""Inputs that a wrong dx may have been computed from, recovered from it: those of other rows, another rstd, another mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.fit import MAX_SQUARES_LEFT, MIN_ELEMENTS, SLACK, TINY, Difference, Fit, nearly_all
from lngrad.check.mistakes.sum_weights import maps_through, which_places
from lngrad.check.mistakes.terms import Terms, narrowed, row_mean, row_sum
from lngrad.support.dtypes import UNIT_ROUNDOFF
from lngrad.testing import Inputs
from lngrad.typing import Array

MAX_PAIRS = 1 << 22  # elements that are looked at, of one wrong row beside all others
NEWTON_STEPS = 4
CANCELLED = 64.0  # roundings of mean(x²) to float32: what E[x²] - E[x]² loses
MIN_ROWS = 4
_CANCELS = "variance by cancellation"
MAX_OF_DIGIT = 0.1  # of the last digit of two numbers that cancel
# Inputs that one wrong index is known to reach.
TOGETHER = (("mean", "rstd"), ("rstd",), ("mean",), ("dy",), ("x",), ("dtotal",))


def inputs_of_other_rows(fit: Fit, inputs: Inputs) -> Iterator[tuple[Inputs, Difference]]:
    """The inputs that wrong rows of dx may have used, and the difference in words, the likeliest first."""
    t, (M, N) = fit.terms, fit.result.shape
    wrong = ~nearly_all(~(np.abs(fit.result - fit.true) > SLACK * fit.bound), 1)
    places = np.flatnonzero(wrong)
    if M < 2 or not len(places) or M * N > MAX_PAIRS or N < 4:
        return
    for which in TOGETHER if inputs.dtotal is not None else TOGETHER[:-1]:
        what, several = " and ".join(which), len(which) > 1
        are, their = ("they are", "their") if several else ("it is", "its")
        for text, whose in maps_through(places, partial(_may_use, fit, which), t.lead, "row"):
            # A rule for all rows, where most are wrong, or for the wrong ones.
            uses = [(whose, "all rows")] if 2 * len(places) > M else []
            for used, where in (*uses, (np.where(wrong, whose, np.arange(M)), which_places(wrong, "row"))):
                read: dict[str, Any] = {
                    name: getattr(t, name)[used].reshape(getattr(inputs, name).shape) for name in which
                }
                yield replace(inputs, **read), Difference(
                    f"{'statistics' if several else what} of other rows",
                    f"{where} use the {what} {text}: {are} not loaded anew for the tile, or {their} index is not the row's.",
                )  # fmt: skip


def _may_use(fit: Fit, which: tuple[str, ...], row: int) -> Any:
    """The rows whose inputs may have given this row of dx."""
    t = fit.terms
    if which == ("dtotal",):
        other = fit.true[row] + (np.asarray(t.dtotal) - np.asarray(t.dtotal)[row])
        return nearly_all(np.abs(other - fit.result[row]) <= SLACK * fit.bound[row], 1)
    arrays = {name: getattr(t, name) for name in ("mean", "rstd", "dy", "x")}
    mean, rstd, dy, x = (array if name in which else array[row : row + 1] for name, array in arrays.items())
    dx = t.of_norm(dy * t.gamma, (x - mean) * rstd, rstd)
    scale = np.maximum(1.0, rstd / t.rstd[row])
    return nearly_all(np.abs(dx - fit.of_norm[row]) <= SLACK * fit.bound[row] * scale, 1)


def another_statistic(fit: Fit, inputs: Inputs) -> Iterator[tuple[Inputs, Difference]]:
    """The inputs with another rstd or mean that dx may have used, and the difference in words, the simplest first."""
    t = fit.terms
    if t.N < MIN_ELEMENTS or not fit.is_finite or not (t.rstd > 0).all():
        return
    most = _max_left(fit)
    for name, others in (("rstd", _other_rstds), ("mean", _other_means)):
        for values, difference in others(fit):
            direction = values[:, None]
            dx = _dx_with_rstd(t, direction) if name == "rstd" else _dx_with_xhat_off(t, (direction - t.mean) * t.rstd)
            if fit.squares_left(dx) <= most:
                changed: dict[str, Any] = {name: values.reshape(getattr(inputs, name).shape)}
                yield replace(inputs, **changed), difference


def _max_left(fit: Fit) -> float:
    """How much of the error another statistic may leave: part of it, and less than a free number in a row mean."""
    t, weight = fit.terms, fit.weight
    apart = (fit.result - _dx_with_rstd(t, t.rstd)) * weight
    most = [MAX_SQUARES_LEFT * float(np.square(apart).sum())]
    for shape in (t.rstd * np.ones_like(fit.result), t.rstd * t.xhat):
        direction = shape * weight
        free = row_sum(apart * direction) / np.maximum(row_sum(np.square(direction)), TINY)
        most.append(float(np.square(apart - free * direction).sum()))
    return min(most)


def _dx_with_rstd(t: Terms, rstd: Array) -> Array:
    return t.with_xhat((t.x - t.mean) * rstd, rstd)["dx"]


def _dx_with_xhat_off(t: Terms, e: Array) -> Array:
    """dx with xhat − e in xhat's place, e one number a row."""
    return np.asarray(t.rstd * (t.dxhat - t.means[0] - (t.xhat - e) * (t.means[1] - e * row_mean(t.dxhat))) + t.dtotal)


def _newton(fit: Fit, found: Array, step: Callable[[Array], tuple[Array, Array]]) -> tuple[Array, Array]:
    """(a number of each row, its error) by Newton's method; step: (slope, what is left) at such numbers."""
    weight = 1 / np.maximum(fit.bound, 1e-12 * np.abs(fit.result).max(1, keepdims=True) + TINY)
    for _ in range(NEWTON_STEPS):
        slope, left = (step_part * weight for step_part in step(found))
        size = np.maximum(row_sum(np.square(slope)), TINY)
        found = found + row_sum(slope * left) / size
    return found, 4 / np.sqrt(size)


Statistics = Iterator[tuple[Array, Difference]]  # a statistic of each row, and the difference in words


def _roundings(name: str, array: Array) -> Statistics:
    for dtype in ("bfloat16", "float16"):
        text = f"{name} is rounded to {dtype} before it is used: keep it in float32."
        yield narrowed(array, dtype), Difference(f"{name} rounded to {dtype}", text)


def _digits(factor: float) -> str:
    """As many as tell it from 1."""
    return next((text for digits in (4, 6, 8) if (text := f"{factor:.{digits}g}") != "1"), "1")


# A function of rstd that is off by one number in all rows, its inverse, and the mistake's name and sentence.
_Function = Callable[[Array], Array]
_WAYS: tuple[tuple[_Function, _Function, Callable[[float], tuple[str, str]]], ...] = (
    (np.log, np.exp, lambda apart: (
        f"rstd {_digits(np.exp(apart))} times", f"the result has {_digits(np.exp(apart))} times the given rstd in every row.")),
    (lambda rstd: rstd**-2.0, lambda variance: np.maximum(variance, TINY) ** -0.5, lambda apart: (
        "another eps",
        f"the variance under the root is {apart:+.3g} off in every row: another eps, or eps added twice or not at all.")),
    (lambda rstd: 1 / rstd, lambda deviation: 1 / np.maximum(deviation, TINY), lambda apart: (
        "eps outside the root",
        f"the standard deviation is {apart:+.3g} off in every row: what is added to it belongs under the root.")),
)  # fmt: skip


def _by_cancellation(t: Terms, found: Array, error: Array) -> Statistics:
    """A variance that is a difference of two float32 numbers of the size of mean²: a multiple of their last digit."""
    squares = (t.x**2).mean(1)
    digit = np.spacing(squares.astype(np.float32)).astype(np.float64)
    under = found**-2.0
    if not (2 * error / found * under < MAX_OF_DIGIT * digit).all():
        return
    whole = np.round(under / digit) * digit
    if not (np.abs(under - whole) < MAX_OF_DIGIT * digit).all() or not (whole > 0).all():
        return
    text = "the variance is E[x²] - E[x]² in float32, of which a few digits remain where the mean is large: centre x first."
    yield whole**-0.5, Difference(_CANCELS, text)


def _other_rstds(fit: Fit) -> Statistics:
    """dx = r·u − r³·v, with u and v known."""
    t = fit.terms
    centred = t.x - t.mean
    u, v = t.dxhat - t.means[0], centred * row_mean(t.dxhat * centred)
    solved = _newton(fit, t.rstd, lambda r: (u - 3 * r**2 * v, fit.of_norm - r * u + r**3 * v))
    yield from rstds_like(t, *(column[:, 0] for column in solved))


def rstds_like(t: Terms, found: Array, error: Array) -> Statistics:
    """What an rstd that was recovered from a result, with its error, may be."""
    rstd = t.rstd[:, 0]
    if not (found > 0).all() or (np.abs(found - rstd) <= error).all():
        return
    yield from _roundings("rstd", rstd)
    cut = float(np.median(found[found < rstd - error])) if (found < rstd - error).any() else 0.0
    text = f"rstd is {cut:.4g} where it should be larger: clamped, or the variance has a least value."
    yield np.minimum(rstd, cut), Difference("rstd clamped", text)
    yield from _by_cancellation(t, found, error)
    weight = 1 / np.maximum(error, TINY)
    for of, back, words in _WAYS:
        slope = np.maximum(np.abs(of(rstd * 1.0001) - of(rstd)) / (rstd * 1e-4), TINY)
        apart = float(np.average(of(found) - of(rstd), weights=(weight / slope) ** 2))
        yield back(of(rstd) + apart), Difference(*words(apart))
    roundings = np.abs(found**-2.0 - rstd**-2.0) / (UNIT_ROUNDOFF["float32"] * row_mean(t.x**2)[:, 0] + TINY)
    if t.normalization.centred and roundings.max() <= CANCELLED and len(rstd) >= MIN_ROWS:
        yield found, Difference(_CANCELS, MISTAKES[_CANCELS].sentence)
    if len(rstd) >= 2:
        ratio, row = found / rstd, int(np.argmax(np.abs(found - rstd) * weight))
        yield found, Difference(
            "another rstd",
            f"the result has another rstd, {_digits(ratio.min())} to {_digits(ratio.max())} times the given one (in row {row} "
            f"{found[row]:.9g} for {rstd[row]:.9g}): an approximate root, a rounding, or statistics of other elements.",
        )  # fmt: skip


def _other_means(fit: Fit) -> Statistics:
    t = fit.terms
    first, second = row_mean(t.dxhat), t.means[1]
    off, known = _newton(fit, np.zeros_like(t.mean), lambda e: (
        t.rstd * (second - e * first + (t.xhat - e) * first), fit.result - _dx_with_xhat_off(t, e)))  # fmt: skip
    yield from means_like(t, *((array / t.rstd)[:, 0] for array in (off, known)))


def means_like(t: Terms, apart: Array, error: Array) -> Statistics:
    """What a mean that is this far from the right one, with an error, may be."""
    mean = t.mean[:, 0]
    if not np.isfinite(apart).all() or (np.abs(apart) <= error).all():
        return
    yield from _roundings("mean", mean)
    weight = 1 / np.maximum(error, TINY) ** 2
    offset, size = float(np.average(apart, weights=weight)), float(np.sum(mean**2 * weight))
    text = f"the mean that is subtracted is {offset:+.4g} off in every row."
    yield mean + offset, Difference("mean off by a constant", text)
    if size > 0:
        factor = 1 + float(np.sum(mean * apart * weight)) / size
        text = f"the mean that is subtracted is {factor:.4g} times the given one in every row."
        yield factor * mean, Difference(f"mean {factor:.3g} times", text)
    if len(mean) >= 2:
        row = int(np.argmax(np.abs(apart) * np.sqrt(weight)))
        text = f"the result has another mean (in row {row} {mean[row] + apart[row]:.6g} for {mean[row]:.6g})"
        yield mean + apart, Difference("another mean", f"{text}: a rounding, or statistics of other elements.")
