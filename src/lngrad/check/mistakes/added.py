"""A right result to which something was added that does not belong to it: what lay in the memory, another gradient, a decay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation, coefficient_text
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.typing import Array

EXPLAINED = 0.995  # of the elements
FEWEST = 8
LEFT = 0.1  # of the error, at most: what is added is nearly all of it
PLAIN = (1.0, -1.0, 2.0, 0.5)
_WHY = {
    "dy": "the gradient of a residual connection, or dx is added to the memory of dy",
    "x": "dx is added to the memory of x",
    "dgamma": "dbeta's sum starts from dgamma's",
    "dbeta": "dgamma's sum starts from dbeta's",
    "γ": "a weight decay, or the sum starts from gamma",
    "1": "the sum does not start from 0",
}


def explain_added(terms: Terms, name: str, result: Array, bound: Array, true: dict[str, Array]) -> Explanation | None:
    """The right result and a multiple of something else, the same everywhere; or None.

    Args:
        terms: Of the inputs.
        name: Of the output.
        result, bound: As it came, and the error that a right one may have.
        true: All right gradients, of result's shape.
    """
    rest = result - true[name]
    if (
        rest.size < FEWEST
        or (name == "dx" and terms.N < FEWEST // 2)
        or not np.isfinite(rest).all()
        or np.mean(np.abs(rest) <= bound) >= EXPLAINED
    ):
        return None
    most = LEFT * np.sqrt(np.mean(np.square(rest)))
    weight = 1 / np.maximum(bound, 1e-300)
    for text, one in _others(terms, name, true):
        other = np.broadcast_to(one, rest.shape)
        size = float(np.square(other * weight).sum())
        if not np.isfinite(size) or size == 0:
            continue
        free = float((rest * other * weight**2).sum()) / size
        for factor in (*PLAIN, free):
            left = np.abs(rest - factor * other)
            if np.mean(left <= bound) >= EXPLAINED and np.sqrt(np.mean(np.square(left))) <= most:
                return _explanation(terms, name, text, factor)
    return None


def _others(terms: Terms, name: str, true: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    one = np.ones((1,) * true[name].ndim)
    if name == "dx":
        yield from (("dy", terms.dy), ("x", terms.x))
    else:
        other = "dbeta" if name == "dgamma" else "dgamma"
        yield other, true[other]
        if (terms.gamma != terms.gamma[0, 0]).any():
            yield "γ", terms.gamma[0]
    yield "1", one


def _explanation(terms: Terms, name: str, text: str, factor: float) -> Explanation:
    size = coefficient_text(abs(factor), terms.N, terms.M)
    added = size if text == "1" else text if size == "1" else f"{size}·{text}"
    sign = "+" if factor > 0 else "−"
    whose = "a constant" if text == "1" and factor not in PLAIN else added
    verb = "added to" if factor > 0 else "subtracted from"
    found = Difference(f"{whose} {verb} {name}", f"{name} is right but for {added} {verb} it: {_WHY[text]}.")
    return Explanation(Formula(name, ((RIGHT[name] + " ", False), (f"{sign} {added}", True))), (found,))
