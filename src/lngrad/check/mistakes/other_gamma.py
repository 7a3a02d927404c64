"""The gamma that a wrong dx was computed with, recovered: in which columns it is another, and whose."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import Difference, Explanation
from lngrad.check.mistakes.index_maps import maps_through, spread
from lngrad.check.mistakes.masks import describe_places
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.typing import Array, Shape

MOST_COLUMNS = 1024  # unknowns of the least squares problem
ROWS = 6  # at least, of which the problem is made: each gives N − 2 equations
EQUATIONS = 1 << 13  # the more, the less does the rounding of 16-bit results matter
SLACK = 4.0
EXPLAINED = 0.995
LEFT = 0.25  # of the error's square
NEAR = 1e-3  # of gamma's largest element: what counts as the same element


def explain_gamma(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """dx is the right formula with another gamma in some columns; or None.

    Args:
        terms: Of the inputs.
        dx, bound: (rows, N) in float64, as it came, and the error that a right one may have.
    """
    M, N = dx.shape
    if M < 2 or not 4 <= N <= MOST_COLUMNS or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    rows = np.linspace(0, M - 1, min(max(ROWS, EQUATIONS // N), M)).astype(int)
    A, b = _equations(terms, rows, dx)
    gamma, _, rank, _ = np.linalg.lstsq(A, b, rcond=1e-9)
    if rank < N or not np.isfinite(gamma).all():
        return None
    made, unchanged = (_made(terms, one) for one in (gamma, terms.gamma))
    if np.mean(np.abs(made - dx) <= SLACK * bound) < EXPLAINED:
        return None
    after, before = (float(np.sum(np.square((one - dx) / bound))) for one in (made, unchanged))
    if after > LEFT * before:
        return None
    right = terms.gamma[0]
    noise = np.sqrt(np.mean(np.square((bound / terms.rstd)[rows]))) / np.sqrt(len(rows) * np.mean(np.square(terms.dy)))
    size = max(NEAR * max(1e-300, float(np.abs(right).max())), SLACK * float(noise))
    wrong = np.abs(gamma - right) > size
    if not wrong.any():
        return None
    name, whose = _whose(gamma, right, wrong, size, terms.normalized)
    parts = (("rstd·(", False), ("dy·γ′", True), (" − ", False), ("mean(dy·γ′)", True), (" − ", False),
             ("xhat·mean(dy·γ′·xhat)", True), (")", False))  # fmt: skip
    place = int(np.argmax(np.abs(gamma - right)))
    why = (
        "gamma's index is the column" if name else f"in column {place} it is {gamma[place]:.4g} for {right[place]:.4g}"
    )
    found = Difference(f"another gamma in part of the columns{name}", f"dx is computed with {whose} in "
                       f"{describe_places(wrong, 'column')}: {why}.")  # fmt: skip
    return Explanation(Formula("dx", parts), (found,))


def _made(terms: Terms, gamma: Array) -> Array:
    dxhat, xhat = terms.dy * gamma, terms.xhat
    second = (dxhat * xhat).mean(1, keepdims=True)
    return np.asarray(terms.rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * second))


def _equations(terms: Terms, rows: Array, dx: Array) -> tuple[Array, Array]:
    """dx/rstd of some rows as sums over gamma's elements."""
    N = terms.N
    blocks = []
    for row in rows:
        dy, xhat = terms.dy[row], terms.xhat[row]
        blocks.append(np.diag(dy) - dy[None, :] / N - np.outer(xhat, dy * xhat) / N)
    return np.concatenate(blocks), (dx[rows] / terms.rstd[rows]).reshape(-1)


def _whose(gamma: Array, right: Array, wrong: Array, size: float, dims: Shape) -> tuple[str, str]:
    """What the wrong elements are: one number, of another column, or unknown. (for the name, for the sentence)"""
    places = np.flatnonzero(wrong)
    for value, text in ((1.0, "1 for gamma"), (0.0, "0 for gamma")):
        if (np.abs(gamma[places] - value) <= size).all():
            return f": {text}", text
    pairs = [
        (int(place), {*map(int, np.flatnonzero(np.abs(right - gamma[place]) <= size))} - {int(place)})
        for place in spread(places)
    ]
    for text, whose in maps_through(pairs, len(right), dims, "column"):
        if (np.abs(gamma[places] - right[whose[places]]) <= size).all():
            return f": gamma {text}", f"gamma {text}"
    return "", "another gamma"
