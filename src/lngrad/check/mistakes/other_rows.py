"""Rows whose mean and rstd are those of other rows: which, and whose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lngrad.check.mistakes.formula import Difference
from lngrad.check.mistakes.terms import Terms
from lngrad.testing import Inputs
from lngrad.typing import Array

__all__ = ["statistics_of_other_rows"]

MOST_PAIRS = 1 << 22  # elements that are looked at, of one wrong row beside all others
TRIED = 4  # wrong rows whose statistics are looked for
EXPLAINED = 0.995  # of a row's elements
SLACK = 4.0


def statistics_of_other_rows(
    terms: Terms, inputs: Inputs, dx: Array, bound: Array, true: Array
) -> tuple[Inputs, Difference] | None:
    """The inputs with the statistics that wrong rows of dx have used, and the difference in words; None if it is not that.

    Args:
        terms: Of the inputs.
        inputs: As they should have been used.
        dx, bound, true: (rows, N) in float64: as it came, the error that a right one may have, and the right one.
    """
    M, N = dx.shape
    wrong = np.flatnonzero((np.abs(dx - true) > SLACK * bound).mean(1) > 1 - EXPLAINED)
    if not 0 < len(wrong) < M or M * N > MOST_PAIRS or N < 4:
        return None
    tried = wrong[np.linspace(0, len(wrong) - 1, min(TRIED, len(wrong))).astype(int)]
    sources = [_source(terms, dx, bound, int(row)) for row in tried]
    if any(source is None for source in sources):
        return None
    offsets = {int(row) - int(source) for row, source in zip(tried, sources, strict=True) if source is not None}
    whose = np.arange(M)
    if len(set(sources)) == 1:
        whose[wrong] = sources[0]
        used = f"of row {sources[0]}"
    elif len(offsets) == 1:
        offset = offsets.pop()
        whose[wrong] = np.clip(wrong - offset, 0, M - 1)
        used = f"of the row {abs(offset)} {'before' if offset > 0 else 'after'}"
    else:
        return None
    rows = inputs.mean.shape
    changed = replace(inputs, mean=terms.mean[whose].reshape(rows), rstd=terms.rstd[whose].reshape(rows))
    return changed, Difference("statistics of other rows", f"{_which(wrong, M)} use the mean and rstd {used}: they are not "
                               "loaded anew for the tile, or their index is not the row's.")  # fmt: skip


def _source(terms: Terms, dx: Array, bound: Array, row: int) -> int | None:
    """The row whose statistics give this row of dx."""
    xhat = (terms.x[row] - terms.mean) * terms.rstd  # with the statistics of every row
    dxhat = terms.dxhat[row]
    made = terms.rstd * (dxhat - dxhat.mean() - xhat * (dxhat * xhat).mean(1, keepdims=True))
    scale = np.maximum(1.0, terms.rstd / terms.rstd[row])
    fits = (np.abs(made - dx[row]) <= SLACK * bound[row] * scale).mean(1)
    best = int(np.argmax(fits))
    return best if fits[best] >= EXPLAINED and best != row else None


def _which(wrong: Array, M: int) -> str:
    first, last = int(wrong[0]), int(wrong[-1])
    if len(wrong) != last - first + 1:
        return f"{len(wrong)} of {M} rows, from {first} on,"
    if last == M - 1:
        return f"the last {len(wrong)} rows (from {first} on)"
    return f"rows {first} to {last}" if first != last else f"row {first}"
