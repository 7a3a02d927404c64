"""Results that are right except for position, a factor or an added term: the explainers that search no formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lngrad.check.mistakes.changes import FEW_COLUMNS
from lngrad.check.mistakes.fit import MIN_ELEMENTS, SLACK, TINY, Explanation, Fit, nearly_all, number_text
from lngrad.check.mistakes.sum_weights import describe_places, maps_through, weighted, why_so_many_columns
from lngrad.check.mistakes.terms import Terms, narrowed
from lngrad.support.dtypes import SMALLEST, UNIT_ROUNDOFF
from lngrad.typing import Array, Shape

MIN_LINE = 4  # elements of a row or column, so that none is taken for another by chance
MAX_MOVED = 1 << 22  # elements
MAX_ADDED_LEFT = 0.1  # of the error: what is added is nearly all of it
MIN_FACTOR = 1e-4  # off 1, for a factor
MIN_CUT = 4  # elements that are cut at one number
FILLED = 1e4  # times the largest right result: what memory that was filled holds
MIN_ROWS = 6  # of which that problem is made: each gives N − 2 equations
EQUATIONS = 1 << 13  # the more, the less does the rounding of 16-bit results matter
NEAR = 1e-3  # of gamma's largest element: what counts as the same element
PLAIN = (1.0, -1.0, 2.0, 0.5)


def unwritten(fit: Fit) -> Explanation | None:
    """Whole rows or columns that hold what memory held: of dx also zero, or twice what they should be. All others are right."""
    right = (np.abs(fit.true - fit.result) <= fit.bound) & (np.isfinite(fit.result) | ~np.isfinite(fit.true))
    if fit.result.ndim == 1:
        return _holding_one_value(fit, "column", ~right)
    for axis, what in ((1, "row"), (0, "column")):
        mostly = nearly_all(right, axis)
        odd = ~right.all(axis) & ~mostly
        if (found := _holding_one_value(fit, what, odd)) is not None:
            return found
        for weight, name, text in ((0.0, "never written", "zero"), (2.0, "counted twice", "twice what it should be")):
            explained = odd & (np.abs(weight * fit.true - fit.result) <= weight * fit.bound).all(axis)
            if explained.any() and not explained.all() and (explained | mostly).all():
                counted = weighted(fit.name, what, np.where(explained, weight, 1.0))
                sentence = f"{fit.name} is {text} in whole {what}s: {counted.text}."
                return fit.explanation(f"{what}s of {fit.name} {name}", sentence, f"**w_{what}**·{fit.right}", counted)
    return None


def _holding_one_value(fit: Fit, what: str, odd: Any) -> Explanation | None:
    """Lines that are NaN, or one number other than 0, where all others are right: never written.

    NaN rows count where they lie together: the NaN of a row sum fills rows too. One number counts where memory was filled, and
    infinity in rows, where it has one sign: an overflow has both.
    """
    lines: Array = fit.result[odd] if what == "row" else fit.result[..., odd]
    too_many = odd.all() or (fit.result.ndim == 1 and odd.sum() > 0.95 * odd.size)
    if not lines.size or too_many or not np.isfinite(fit.true).all():
        return None
    value, places = lines.reshape(-1)[0], np.flatnonzero(odd)
    if value == 0 or not (np.isnan(lines).all() or (lines == value).all()):
        return None
    if lines.size < MIN_LINE and (np.isinf(value) or abs(value) < FILLED * np.abs(fit.true).max()):
        return None
    if np.isinf(value) and what == "column":
        return None
    if what == "row" and np.isnan(value) and (len(places) < 2 or places[-1] - places[0] >= len(places)):
        return None
    why = why_so_many_columns(~odd, fit.terms.normalized, fit.name) if what == "column" else ""
    return fit.explanation(
        f"{what}s of {fit.name} never written",
        f"{fit.name} is {value:.4g} in {describe_places(odd, what)}, and right in all others: what the memory held before. "
        f"Look at the mask of the store, at the last tile, and at the size of the grid{why}.",
        f"{fit.right} **where it is written**",
    )  # fmt: skip


def narrow_store(fit: Fit) -> Explanation | None:
    """The right result, rounded to a narrower dtype than it has."""
    if not fit.is_finite:
        return None
    size = np.maximum(np.abs(fit.true), TINY)
    for dtype in ("float16", "bfloat16"):
        unit = UNIT_ROUNDOFF[dtype]
        if np.median(fit.bound / size) > 0.5 * unit or (narrowed(fit.result, dtype) != fit.result).any():
            continue
        if nearly_all(np.abs(fit.result - fit.true) <= 1.01 * unit * size + fit.bound + SMALLEST[dtype]):
            text = f"{fit.name} is right to {dtype}, and declared wider: it is stored, or cast, in {dtype} on the way."
            return fit.explanation(f"{fit.name} rounded to {dtype}", text, f"**{dtype}(**{fit.right}**)**")
    return None


def clipped(fit: Fit) -> Explanation | None:
    """The right result, with what is larger than one number cut to it, of both signs."""
    if not fit.is_finite:
        return None
    most = float(np.abs(fit.result).max())
    cut = (np.abs(fit.true - fit.result) > fit.bound) & (np.abs(fit.true) > most)
    clipped = np.clip(fit.true, -most, most)
    if not most or cut.sum() < MIN_CUT or cut.all() or not fit.explains(clipped) or not np.isfinite(fit.true).all():
        return None
    right = np.abs(fit.true).max()
    text = f"{fit.name} is never larger than {most:.4g}, where up to {right:.4g} belongs: clipped, or saturated."
    return fit.explanation(f"{fit.name} clipped", text, f"**clip(**{fit.right}**, ±{most:.4g})**")


MAX_FLOAT16 = 65504.0


def overflow(fit: Fit) -> Explanation | None:
    """Rows of dx that are not finite, where a row sum is beyond float16's largest number; the others are finite."""
    rows = ~np.isfinite(fit.result).all(1)
    if not rows.any() or not np.isfinite(fit.true).all():
        return None
    for label, array in zip(("dxhat", "dxhat·xhat"), fit.terms.averaged, strict=True):
        certain, possible = np.abs(array.sum(1)) > MAX_FLOAT16, np.abs(array).sum(1) > MAX_FLOAT16
        if (certain == rows).all() or (((certain <= rows) & (rows <= possible)).all() and not possible.all()):
            which = f"{int(rows.sum())} of {len(fit.result)} rows, those whose sum of {label} is beyond 65504"
            text = f"dx is not finite in {which}: the sum, or the dot product, is kept in float16. Add up in float32."
            return fit.explanation("row sums overflow float16", text, fit.right)
    return None


def moved(fit: Fit) -> Explanation | None:
    """Whole rows, or whole columns, of dx that are another's; columns of dgamma and dbeta."""
    t = fit.terms
    if not fit.is_finite:
        return None
    if fit.result.ndim == 1:
        return _moved_lines(fit, "column", lambda item: item[:, None]) if t.N >= 2 * MIN_LINE else None
    if fit.result.size > MAX_MOVED:
        return None
    found = _moved_lines(fit, "row", lambda item: item) if t.N >= MIN_LINE else None
    return _moved_lines(fit, "column", np.transpose) if found is None and t.M >= MIN_LINE else found


def _moved_lines(fit: Fit, what: str, lines: Callable[[Array], Array]) -> Explanation | None:
    """Lines (the first axis, as `lines` turns the arrays) of a result that are other lines of the right one."""
    result, bound, true = map(lines, (fit.result, fit.bound, fit.true))
    wrong = ~nearly_all(~(np.abs(true - result) > SLACK * bound), 1)
    number, size, dims = wrong.sum(), len(wrong), fit.terms.lead if what == "row" else fit.terms.normalized
    if number < (2 if fit.result.ndim == 2 else MIN_LINE):
        return None

    def may_use(place: int) -> Any:
        return nearly_all(np.abs(true - result[place]) <= SLACK * bound[place], 1)

    for text, whose in maps_through(np.flatnonzero(wrong), may_use, dims, what):
        if nearly_all(np.abs(true[np.where(wrong, whose, np.arange(size))] - result) <= SLACK * bound):
            which = f"all {what}s" if wrong.all() else f"{number} of {size} {what}s, from {wrong.argmax()} on,"
            sentence = (
                f"in {fit.name}, {which} hold the result {text}: the index of the store, or of all loads, is wrong."
            )
            return fit.explanation(
                f"{what}s of {fit.name} in other places", sentence, f"{fit.right} **of another {what}**"
            )
    return None


_WHY_ADDED = {
    "dy": "the gradient of a residual connection, or dx is added to the memory of dy", "x": "dx is added to the memory of x",
    "dtotal": "the gradient of the total is added once, and has no factor", "1": "the sum does not start from 0",
    "dgamma": "dbeta's sum starts from dgamma's", "dbeta": "dgamma's sum starts from dbeta's",
    "γ": "a weight decay, or the sum starts from gamma",
}  # fmt: skip


def added(fit: Fit) -> Explanation | None:
    """The right result and a multiple of something else, the same everywhere: another gradient, a decay, old memory."""
    rest = fit.result - fit.true
    if rest.size < MIN_ELEMENTS or (fit.name == "dx" and fit.terms.N < MIN_ELEMENTS // 2):
        return None
    if not fit.is_finite or fit.explains(fit.true):
        return None
    most = MAX_ADDED_LEFT * np.sqrt(np.mean(np.square(rest)))
    weight = 1 / np.maximum(SLACK * fit.bound, TINY)
    for text, term in _addable(fit):
        other = np.broadcast_to(term, rest.shape)
        size = float(np.square(other * weight).sum())
        if not np.isfinite(size) or size == 0:
            continue
        free = float((rest * other * weight**2).sum()) / size
        for factor in (*PLAIN, free):
            left = np.abs(rest - factor * other)
            if not nearly_all(left <= SLACK * fit.bound) or np.sqrt(np.mean(np.square(left))) > most:
                continue
            number = number_text(abs(factor), fit.terms.N, fit.terms.M)
            more = number if text == "1" else text if number == "1" else f"{number}·{text}"
            sign, verb = ("+", "added to") if factor > 0 else ("−", "subtracted from")
            whose = "a constant" if text == "1" and factor not in PLAIN else more
            sentence = f"{fit.name} is right but for {more} {verb} it: {_WHY_ADDED[text]}."
            return fit.explanation(f"{whose} {verb} {fit.name}", sentence, f"{fit.right} **{sign} {more}**")
    return None


def _addable(fit: Fit) -> Iterator[tuple[str, Array]]:
    t = fit.terms
    if fit.name == "dx":
        yield from (("dy", t.dy), ("x", t.x))
        if isinstance(t.dtotal, np.ndarray):
            yield "dtotal", t.dtotal
    else:
        other = "dbeta" if fit.name == "dgamma" else "dgamma"
        yield other, fit.rights[other]
        if (t.gamma != t.gamma[0, 0]).any():
            yield "γ", t.gamma[0]
    yield "1", np.ones((1,) * fit.result.ndim)


def factors(fit: Fit) -> Explanation | None:
    """Every row, or every column, of dx has a factor of its own: the rstd of another row, gamma once more, or any."""
    t, dx, true = fit.terms, fit.result, fit.true
    if not fit.is_finite or not (t.rstd > 0).all():
        return None
    weight = fit.weight**2
    for axis, what in ((1, "row"), (0, "column")):
        if dx.shape[axis] < MIN_ELEMENTS or dx.shape[1 - axis] < 4:
            continue
        squares = np.maximum((true**2 * weight).sum(axis, keepdims=True), TINY)
        times = (dx * true * weight).sum(axis, keepdims=True) / squares
        known, found = SLACK / np.sqrt(squares.reshape(-1)), times.reshape(-1)
        wrong = np.abs(found - 1) > known
        if not fit.explains(times * true) or not fit.is_left_little(times * true, true):
            continue
        if not (wrong & (np.abs(found - 1) > MIN_FACTOR)).any() or np.ptp(found) <= known.max():
            continue
        name, text = (_row_factors if what == "row" else _column_factors)(t, found, known)
        where = f"every {what}" if wrong.all() else describe_places(wrong, what)
        place = int(np.argmax(np.abs(found - 1)))
        if not text:
            text = f"{found[place]:.4g}"
            if np.ptp(found[wrong]) > 2 * known[wrong].max():
                text = f"numbers from {found.min():.5g} to {found.max():.5g} ({found[place]:.5g} in {what} {place})"
        sentence = f"dx is the right one times {text} in {where}."
        return fit.explanation(f"dx times a factor a {what}{name}", sentence, f"**k_{what}**·{fit.right}")
    return None


def _row_factors(terms: Terms, found: Array, known: Array) -> tuple[str, str]:
    """What the factors are: (for the name, for the sentence)."""
    rstd = terms.rstd[:, 0]
    for dtype in ("bfloat16", "float16"):
        if nearly_all(np.abs(found - narrowed(rstd, dtype) / rstd) <= known):
            return f": rstd in {dtype}", f"rstd rounded to {dtype} over rstd"
    wrong = np.flatnonzero(np.abs(found - 1) > known)
    if (np.abs(found[wrong] + 1) <= known[wrong]).all():
        return ": −1", "−1"

    def may_use(row: int) -> Array:
        return np.asarray(np.abs(found[row] - rstd / rstd[row]) <= known[row])

    for text, used in maps_through(wrong, may_use, terms.lead, "row"):
        if nearly_all(np.abs(found - rstd[used] / rstd) <= known):
            return ": rstd of another row", f"another rstd in front of the bracket, {text}"
    return "", ""


def _column_factors(terms: Terms, found: Array, known: Array) -> tuple[str, str]:
    gamma, wrong = terms.gamma[0], np.abs(found - 1) > known
    if (np.abs(found[wrong] + 1) <= known[wrong]).all():
        return ": −1", "−1"
    with np.errstate(divide="ignore"):
        for name, factor in (("gamma", gamma), ("1/gamma", 1 / gamma), ("1 + gamma", 1 + gamma)):
            if nearly_all(np.abs(found - factor) <= known * np.maximum(1.0, np.abs(factor))):
                return f": {name}", f"{name}, which is in dxhat already"
    return "", ""


def another_gamma(fit: Fit) -> Explanation | None:
    """dx is the right formula with another gamma in some columns: the gamma that was used, recovered by least squares."""
    t, (M, N) = fit.terms, fit.result.shape
    if M < 2 or not 4 <= N <= FEW_COLUMNS or not fit.is_finite or not (t.rstd != 0).all():
        return None
    rows = np.linspace(0, M - 1, min(max(MIN_ROWS, EQUATIONS // N), M)).astype(int)
    # dx/rstd of some rows as sums over gamma's elements.
    A = np.concatenate([
        np.diag(dy) - t.normalization.centred * dy[None, :] / N - np.outer(xhat, dy * xhat) / N
        for dy, xhat in zip(t.dy[rows], t.xhat[rows], strict=True)
    ])  # fmt: skip
    gamma, _, rank, _ = np.linalg.lstsq(A, (fit.of_norm[rows] / t.rstd[rows]).reshape(-1), rcond=1e-9)
    if rank < N or not np.isfinite(gamma).all():
        return None
    dx = t.of_norm(t.dy * gamma, t.xhat, t.rstd) + t.dtotal
    if not fit.explains(dx) or not fit.is_left_little(dx, t.dx()):
        return None
    right = t.gamma[0]
    noise = np.sqrt(np.mean(np.square((fit.bound / t.rstd)[rows]))) / np.sqrt(len(rows) * np.mean(np.square(t.dy)))
    size = max(NEAR * max(TINY, float(np.abs(right).max())), SLACK * float(noise))
    wrong = np.abs(gamma - right) > size
    if not wrong.any():
        return None
    name, whose = _whose_gamma(gamma, right, wrong, size, t.normalized)
    place = int(np.argmax(np.abs(gamma - right)))
    example = f"in column {place} it is {gamma[place]:.4g} for {right[place]:.4g}"
    why = "gamma's index is the column" if name else example
    text = f"dx is computed with {whose} in {describe_places(wrong, 'column')}: {why}."
    formula = t.dx_text("**mean(dy·γ′)**", "**mean(dy·γ′·xhat)**").replace("(dxhat", "(**dy·γ′**")
    return fit.explanation(f"another gamma in part of the columns{name}", text, formula)


def _whose_gamma(gamma: Array, right: Array, wrong: Array, size: float, dims: Shape) -> tuple[str, str]:
    """What the wrong elements are: one number, of another column, or unknown. (for the name, for the sentence)"""
    places = np.flatnonzero(wrong)
    for value, text in ((1.0, "1 for gamma"), (0.0, "0 for gamma")):
        if (np.abs(gamma[places] - value) <= size).all():
            return f": {text}", text
    for text, whose in maps_through(places, lambda place: np.abs(right - gamma[place]) <= size, dims, "column"):
        if (np.abs(gamma[places] - right[whose[places]]) <= size).all():
            return f": gamma {text}", f"gamma {text}"
    return "", "another gamma"
