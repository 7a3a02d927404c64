"""What the searches for another mean and another rstd share: when a number of each row explains enough of a wrong dx."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lngrad.check.mistakes.formula import Difference
from lngrad.check.mistakes.terms import Terms
from lngrad.core.dtypes import numpy_dtype
from lngrad.typing import Array

FEWEST = 8  # columns, so that one free number a row explains nothing by chance
STEPS = 4  # of Newton's method
LEFT = 0.25  # of the error's square


def roundings(name: str, given: Array) -> Iterator[tuple[Array, Difference]]:
    """A statistic of each row as 16 bits hold it, and the difference in words."""
    for dtype in ("bfloat16", "float16"):
        narrow = given.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
        text = f"{name} is rounded to {dtype} before it is used: keep it in float32."
        yield narrow, Difference(f"{name} rounded to {dtype}", text)


def most_left(terms: Terms, dx: Array, bound: Array) -> float:
    """How much of the error another statistic may leave: part of it, and less than a free number in a row mean."""
    weight = 1 / np.maximum(bound, 1e-300)
    apart = (dx - dx_with(terms, terms.rstd)) * weight
    most = [LEFT * float(np.square(apart).sum())]
    for shape in (terms.rstd * np.ones_like(dx), terms.rstd * terms.xhat):
        one = shape * weight
        free = (apart * one).sum(1, keepdims=True) / np.maximum(np.square(one).sum(1, keepdims=True), 1e-300)
        most.append(float(np.square(apart - free * one).sum()))
    return min(most)


def size_of_rest(dx: Array, made: Array, bound: Array) -> float:
    """The sum of squares that is left of dx, in bounds."""
    return float(np.square((dx - made) / np.maximum(bound, 1e-300)).sum())


def dx_with(terms: Terms, rstd: Array) -> Array:
    """dx of the given mean and another rstd."""
    xhat = (terms.x - terms.mean) * rstd
    second = (terms.dxhat * xhat).mean(1, keepdims=True)
    return np.asarray(rstd * (terms.dxhat - terms.dxhat.mean(1, keepdims=True) - xhat * second))
