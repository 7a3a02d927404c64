"""Rows that are computed from inputs of other rows: which, which inputs, and whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.mistakes.formula import Difference
from lngrad.check.mistakes.index_maps import maps_through, spread
from lngrad.check.mistakes.terms import Terms
from lngrad.testing import Inputs
from lngrad.typing import Array

MOST_PAIRS = 1 << 22  # elements that are looked at, of one wrong row beside all others
EXPLAINED = 0.995  # of a row's elements
SLACK = 4.0
# Inputs that one wrong index is known to reach: (what the mistake is called, in words, which they are).
TOGETHER = (
    ("statistics of other rows", "the mean and rstd", ("mean", "rstd")),
    ("rstd of other rows", "the rstd", ("rstd",)),
    ("mean of other rows", "the mean", ("mean",)),
    ("dy of other rows", "the dy", ("dy",)),
    ("x of other rows", "the x", ("x",)),
)


def inputs_of_other_rows(
    terms: Terms, inputs: Inputs, dx: Array, bound: Array, true: Array
) -> Iterator[tuple[Inputs, Difference]]:
    """The inputs that wrong rows of dx may have used, and the difference in words, the likeliest first.

    Args:
        terms: Of the inputs.
        inputs: As they should have been used.
        dx, bound, true: (rows, N) in float64: as it came, the error that a right one may have, and the right one.
    """
    M, N = dx.shape
    wrong = np.flatnonzero((np.abs(dx - true) > SLACK * bound).mean(1) > 1 - EXPLAINED)
    if M < 2 or not len(wrong) or M * N > MOST_PAIRS or N < 4:
        return
    for name, what, which in TOGETHER:
        pairs = _sources(terms, dx, bound, wrong, which)
        for text, used, where in _uses(pairs, wrong, M, terms) if pairs else ():
            arrays = {"mean": terms.mean, "rstd": terms.rstd, "dy": terms.dy, "x": terms.x}
            read: dict[str, Any] = {one: arrays[one][used].reshape(getattr(inputs, one).shape) for one in which}
            changed = replace(inputs, **read)
            sentence = (
                f"{where} use {what} {text}: {'they are' if len(which) > 1 else 'it is'} not loaded anew for the "
                f"tile, or {'their' if len(which) > 1 else 'its'} index is not the row's."
            )
            yield changed, Difference(name, sentence)


def _uses(pairs: list[tuple[int, set[int]]], wrong: Array, M: int, terms: Terms) -> Iterator[tuple[str, Array, str]]:
    """(in words, the row that each row uses, which rows): a rule for all rows, where most are wrong, or for the wrong ones."""
    for text, whose in maps_through(pairs, M, terms.lead, "row"):
        if 2 * len(wrong) > M:
            yield text, whose, "all rows"
        some = np.arange(M)
        some[wrong] = whose[wrong]
        yield text, some, _which(wrong, M)


def _sources(terms: Terms, dx: Array, bound: Array, wrong: Array, which: tuple[str, ...]) -> list[tuple[int, set[int]]]:
    """For a few wrong rows, the rows whose inputs may have given them; empty if one has none."""
    found = []
    for row in map(int, spread(wrong)):
        sources = _sources_of(terms, dx, bound, row, which)
        if not sources:
            return []
        found.append((row, sources))
    return found


def _sources_of(terms: Terms, dx: Array, bound: Array, row: int, which: tuple[str, ...]) -> set[int]:
    """The rows whose inputs give this row of dx."""
    mean, rstd, dy, x = (
        one if name in which else one[row : row + 1]
        for name, one in (("mean", terms.mean), ("rstd", terms.rstd), ("dy", terms.dy), ("x", terms.x))
    )
    xhat, dxhat = (x - mean) * rstd, dy * terms.gamma
    second = (dxhat * xhat).mean(1, keepdims=True)
    made = rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * second)
    scale = np.maximum(1.0, rstd / terms.rstd[row])
    fits = (np.abs(made - dx[row]) <= SLACK * bound[row] * scale).mean(1)
    return {*map(int, np.flatnonzero(fits >= EXPLAINED))} - {row}


def _which(wrong: Array, M: int) -> str:
    first, last = int(wrong[0]), int(wrong[-1])
    if len(wrong) != last - first + 1:
        return f"{len(wrong)} of {M} rows, from {first} on,"
    if last == M - 1:
        return f"the last {len(wrong)} rows (from {first} on)"
    return f"rows {first} to {last}" if first != last else f"row {first}"
