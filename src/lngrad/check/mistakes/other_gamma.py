"""The gamma that a wrong dx was computed with, recovered: in which columns it is another, and whose."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import Difference, Explanation
from lngrad.check.mistakes.masks import describe_columns
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.typing import Array

__all__ = ["explain_gamma"]

MOST_COLUMNS = 1024  # unknowns of the least squares problem
ROWS = 6  # of which the problem is made: each gives N − 2 equations
SLACK = 4.0
EXPLAINED = 0.995
NEAR = 1e-3  # of gamma's largest element: what counts as the same element
MOST_SHIFT = 256


def explain_gamma(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """dx is the right formula with another gamma in some columns; or None.

    Args:
        terms: Of the inputs.
        dx, bound: (rows, N) in float64, as it came, and the error that a right one may have.
    """
    M, N = dx.shape
    if M < 2 or not 4 <= N <= MOST_COLUMNS or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    rows = np.linspace(0, M - 1, min(ROWS, M)).astype(int)
    A, b = _equations(terms, rows, dx)
    gamma, _, rank, _ = np.linalg.lstsq(A, b, rcond=1e-9)
    if rank < N or not np.isfinite(gamma).all():
        return None
    dxhat = terms.dy * gamma
    made = terms.rstd * (
        dxhat - dxhat.mean(1, keepdims=True) - terms.xhat * (dxhat * terms.xhat).mean(1, keepdims=True)
    )
    if np.mean(np.abs(made - dx) <= SLACK * bound) < EXPLAINED:
        return None
    right, size = terms.gamma[0], NEAR * max(1e-300, float(np.abs(terms.gamma).max()))
    wrong = np.abs(gamma - right) > size
    if not wrong.any():
        return None
    where = describe_columns(wrong)
    whose = _whose(gamma, right, wrong, size)
    parts = (("rstd·(", False), ("dy·γ′", True), (" − ", False), ("mean(dy·γ′)", True), (" − ", False),
             ("xhat·mean(dy·γ′·xhat)", True), (")", False))  # fmt: skip
    found = Difference(f"another gamma in part of the columns{whose[0]}", f"dx is computed with {whose[1]} in {where}: "
                       "gamma's index is the column.")  # fmt: skip
    return Explanation(Formula("dx", parts), (found,))


def _equations(terms: Terms, rows: Array, dx: Array) -> tuple[Array, Array]:
    """dx/rstd of some rows as sums over gamma's elements."""
    N = terms.N
    blocks = []
    for row in rows:
        dy, xhat = terms.dy[row], terms.xhat[row]
        blocks.append(np.diag(dy) - dy[None, :] / N - np.outer(xhat, dy * xhat) / N)
    return np.concatenate(blocks), (dx[rows] / terms.rstd[rows]).reshape(-1)


def _whose(gamma: Array, right: Array, wrong: Array, size: float) -> tuple[str, str]:
    """What the wrong elements are: of a neighbour, of none (1 or 0), or unknown. (for the name, for the sentence)"""
    N, places = len(right), np.flatnonzero(wrong)
    for value, text in ((1.0, "1 for gamma"), (0.0, "0 for gamma")):
        if (np.abs(gamma[places] - value) <= size).all():
            return f": {text}", text
    for shift in range(1, min(MOST_SHIFT, N)):
        for step, word in ((shift, "next"), (-shift, "previous")):
            if (np.abs(gamma[places] - right[(places + step) % N]) <= size).all():
                text = (
                    f"gamma of the {word} column"
                    if shift == 1
                    else f"gamma of {shift} columns {'on' if step > 0 else 'before'}"
                )
                return f": {text}", text
    return "", "another gamma"
