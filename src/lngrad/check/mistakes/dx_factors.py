"""A dx that is the right one times a factor of each row, or of each column."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation
from lngrad.check.mistakes.index_maps import maps_through, spread
from lngrad.check.mistakes.masks import describe_places
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.core.dtypes import numpy_dtype
from lngrad.typing import Array

SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
LEFT = 0.25  # of the error's square
FEWEST = 8  # elements, so that one free factor explains nothing by chance


def explain_factors(terms: Terms, dx: Array, bound: Array, true: Array) -> Explanation | None:
    """Every row, or every column, of dx has a factor of its own: the rstd of another row, gamma once more, or any."""
    true = true.reshape(dx.shape)
    if not np.isfinite(dx).all() or not (terms.rstd > 0).all():
        return None
    for axis, what in ((1, "row"), (0, "column")):
        if dx.shape[axis] < FEWEST or dx.shape[1 - axis] < 4:
            continue
        weight = 1 / np.square(np.maximum(bound, 1e-300))
        factors = (dx * true * weight).sum(axis, keepdims=True) / np.maximum(
            (true**2 * weight).sum(axis, keepdims=True), 1e-300
        )
        fits = np.abs(factors * true - dx) <= SLACK * bound
        before, after = (float(np.sum(np.square(one - dx) * weight)) for one in (true, factors * true))
        known = SLACK / np.sqrt(np.maximum((true**2 * weight).sum(axis), 1e-300))
        found = factors.reshape(-1)
        if (
            np.mean(fits) < EXPLAINED
            or after > LEFT * before
            or (np.abs(found - 1) <= known).all()
            or np.ptp(found) <= known.max()
        ):
            continue
        whose = _row_factors(terms, found, known) if what == "row" else _column_factors(terms, found, known)
        wrong = np.abs(found - 1) > known
        where = f"every {what}" if wrong.all() else describe_places(wrong, what)
        place = int(np.argmax(np.abs(found - 1)))
        one = np.ptp(found[wrong]) <= 2 * known[wrong].max()
        text = whose[1] or (
            f"{found[place]:.4g}" if one else f"numbers from {found.min():.5g} to {found.max():.5g} ({found[place]:.5g} in "
            f"{what} {place})"
        )  # fmt: skip
        difference = Difference(
            f"dx times a factor a {what}{whose[0]}", f"dx is the right one times {text} in {where}."
        )
        return Explanation(Formula("dx", ((f"k_{what}", True), ("·" + RIGHT["dx"], False))), (difference,))
    return None


def _row_factors(terms: Terms, found: Array, known: Array) -> tuple[str, str]:
    """What the factors are: (for the name, for the sentence)."""
    rstd = terms.rstd[:, 0]
    for dtype in ("bfloat16", "float16"):
        narrow = rstd.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
        if np.mean(np.abs(found - narrow / rstd) <= known) >= EXPLAINED:
            return f": rstd in {dtype}", f"rstd rounded to {dtype} over rstd"
    pairs: list[tuple[int, set[int]]] = []
    for row in map(int, spread(np.flatnonzero(np.abs(found - 1) > known))):
        near = np.abs(found[row] - rstd / rstd[row]) <= known[row]
        pairs.append((row, {*map(int, np.flatnonzero(near))} - {row}))
    for text, used in maps_through(pairs, terms.M, terms.lead, "row"):
        if np.mean(np.abs(found - rstd[used] / rstd) <= known) >= EXPLAINED:
            return ": rstd of another row", f"another rstd in front of the bracket, {text}"
    return "", ""


def _column_factors(terms: Terms, found: Array, known: Array) -> tuple[str, str]:
    with np.errstate(divide="ignore"):
        for name, factor in (
            ("gamma", terms.gamma[0]),
            ("1/gamma", 1 / terms.gamma[0]),
            ("1 + gamma", 1 + terms.gamma[0]),
        ):
            if np.mean(np.abs(found - factor) <= known * np.maximum(1.0, np.abs(factor))) >= EXPLAINED:
                return f": {name}", f"{name}, which is in dxhat already"
    return "", ""
