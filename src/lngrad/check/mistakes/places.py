"""Results that are right, but lie in other places: rows or columns of dx, columns of dgamma and dbeta."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation
from lngrad.check.mistakes.index_maps import maps_through, spread
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.typing import Array, Shape

EXPLAINED = 0.995  # of the elements
FEWEST = 4  # elements of a row or column, so that none is taken for another by chance
MOST_ELEMENTS = 1 << 22


def explain_moved(terms: Terms, dx: Array, bound: Array, true: Array) -> Explanation | None:
    """Whole rows, or whole columns, of dx that are another's."""
    true = true.reshape(dx.shape)
    if dx.size > MOST_ELEMENTS or not np.isfinite(dx).all():
        return None
    for what, dims, some in (
        ("row", terms.lead, (dx, bound, true)), ("column", terms.normalized, (dx.T, bound.T, true.T)),
    ):  # fmt: skip
        text = _moved(*some, dims, what) if some[0].shape[1] >= FEWEST else None
        if text is not None:
            return _explanation("dx", what, text)
    return None


def explain_moved_columns(terms: Terms, name: str, result: Array, bound: Array, true: Array) -> Explanation | None:
    """Columns of dgamma or dbeta that are another's."""
    result, bound, true = (one.reshape(-1, 1) for one in (result, bound, true))
    if len(result) < 2 * FEWEST or not np.isfinite(result).all():
        return None
    text = _moved(result, bound, true, terms.normalized, "column")
    return None if text is None else _explanation(name, "column", text)


def _explanation(name: str, what: str, text: str) -> Explanation:
    found = Difference(
        f"{what}s of {name} in other places", f"in {name}, {text}: the index of the store, or of all loads, is wrong."
    )
    return Explanation(Formula(name, ((RIGHT[name] + " ", False), (f"of another {what}", True))), (found,))


def _moved(result: Array, bound: Array, true: Array, dims: Shape, what: str) -> str | None:
    """In words, which lines (the first axis) of a result are which other lines of the right one."""
    size = len(result)
    wrong = np.flatnonzero((np.abs(result - true) > bound).mean(1) > 1 - EXPLAINED)
    if len(wrong) < 2:
        return None
    pairs = []
    for place in map(int, spread(wrong)):
        fits = (np.abs(true - result[place]) <= bound[place]).mean(1)
        sources = {*map(int, np.flatnonzero(fits >= EXPLAINED))} - {place}
        if not sources:
            return None
        pairs.append((place, sources))
    for text, whose in maps_through(pairs, size, dims, what):
        used = np.arange(size)
        used[wrong] = whose[wrong]
        if np.mean(np.abs(true[used] - result) <= bound) >= EXPLAINED:
            which = f"all {what}s" if len(wrong) == size else f"{len(wrong)} of {size} {what}s, from {wrong[0]} on,"
            return f"{which} hold the result {text}"
    return None
