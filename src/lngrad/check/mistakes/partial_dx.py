"""A dx of which parts are missing: columns that a row mean does not take once, rows and columns that are never written."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation
from lngrad.check.mistakes.masks import describe_weights, recover_weights, runs_of
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula, Weights
from lngrad.typing import Array

__all__ = ["describe_means", "explain_partial_means", "explain_unwritten"]

SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
FEWEST = 8  # columns, so that two free numbers a row explain nothing by chance


def explain_partial_means(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """Row means that do not take every column once: which columns they take."""
    M, N = terms.dy.shape
    if M < 4 or N < 4 or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    first, second = _means_of(terms, dx)
    right_first, right_second = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)

    def fits(m1: Array, m2: Array) -> bool:
        return _obeys(terms, dx, bound, m1, m2)

    A1, A2 = terms.dxhat / N, terms.dxhat * terms.xhat / N
    for sum_name, label, A, b, check in (
        ("mean_dxhat_xhat", "mean of dxhat·xhat", A2, second, lambda w: fits(right_first, A2 @ w)),
        ("mean_dxhat", "mean of dxhat", A1, first, lambda w: fits(A1 @ w, right_second)),
        ("both means", "means", np.vstack([A1, A2]), np.append(first, second), lambda w: fits(A1 @ w, A2 @ w)),
    ):  # fmt: skip
        weights = recover_weights(A, b, check)
        if weights is not None:
            text = describe_weights(weights, "column")
            verb = "take" if label == "means" else "takes"
            found = Difference(f"part of the columns in the {label}",
                               f"the {label} {verb} not every column once: {text}.")  # fmt: skip
            parts = (
                ("rstd·(dxhat − ", False), ("mean_dxhat", sum_name != "mean_dxhat_xhat"), (" − ", False),
                ("xhat·mean_dxhat_xhat", sum_name != "mean_dxhat"), (")", False),
            )  # fmt: skip
            return Explanation(Formula("dx", parts), (found,), (Weights(sum_name, "column", runs_of(weights), text),))
    return None


def _means_of(terms: Terms, dx: Array) -> tuple[Array, Array]:
    """The two row means that dx has: dxhat − dx/rstd = m1 + xhat·m2 for each row, two unknowns, by least squares."""
    left = terms.dxhat - dx / terms.rstd
    centre, spread = terms.xhat.mean(1, keepdims=True), terms.xhat - terms.xhat.mean(1, keepdims=True)
    second = (left * spread).sum(1) / np.maximum(np.square(spread).sum(1), 1e-300)
    return left.mean(1) - centre[:, 0] * second, second


def _obeys(terms: Terms, dx: Array, bound: Array, m1: Array, m2: Array) -> bool:
    made = terms.rstd * (terms.dxhat - m1[:, None] - terms.xhat * m2[:, None])
    return bool(np.mean(np.abs(made - dx) <= SLACK * bound) >= EXPLAINED)


def describe_means(terms: Terms, dx: Array, bound: Array) -> str | None:
    """That dx is right but for its two row means, where they are of no known kind; None if it is not so."""
    if terms.N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    first, second = _means_of(terms, dx)
    rights = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)
    if not _obeys(terms, dx, bound, first, second):
        return None
    wrong = {"mean of dxhat": (first, rights[0]), "mean of dxhat·xhat": (second, rights[1])}
    if _obeys(terms, dx, bound, rights[0], second):
        del wrong["mean of dxhat"]
    elif _obeys(terms, dx, bound, first, rights[1]):
        del wrong["mean of dxhat·xhat"]
    texts = []
    for label, (got, right) in wrong.items():
        row = int(np.argmax(np.abs(got - right)))
        texts.append(f"the {label} (in row {row} it is {got[row]:.4g}, and should be {right[row]:.4g})")
    return f"the formula is right, but for {' and '.join(texts)}: look at what these row sums take and divide by"


def explain_unwritten(terms: Terms, dx: Array, bound: Array, true: Array) -> Explanation | None:
    """Whole rows or columns of dx that are zero, where all others are right."""
    true, right = true.reshape(dx.shape), np.abs(true.reshape(dx.shape) - dx) <= bound
    for axis, what in ((1, "row"), (0, "column")):
        zero = (dx == 0).all(axis) & ~right.all(axis)
        if zero.any() and not zero.all() and (zero | (right.mean(axis) >= EXPLAINED)).all():
            weights = np.where(zero, 0.0, 1.0)
            text = describe_weights(weights, what)
            found = Difference(f"{what}s of dx never written", f"dx is zero in whole {what}s: {text}.")
            parts = ((f"w_{what}", True), ("·", False), (RIGHT["dx"], False))
            return Explanation(Formula("dx", parts), (found,), (Weights("dx", what, runs_of(weights), text),))
    return None
