"""A dx of which parts are wrong: row means of part of the columns, rows and columns that are never written."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation
from lngrad.check.mistakes.masks import describe_weights, recover_weights, runs_of
from lngrad.check.mistakes.row_means import obeys, row_means_of
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula, Weights
from lngrad.typing import Array

SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements


def explain_partial_means(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """Row means that do not take every column once: which columns they take."""
    M, N = terms.dy.shape
    if M < 4 or N < 4 or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    first, second = row_means_of(terms, dx)
    right_first, right_second = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)

    def fits(m1: Array, m2: Array) -> bool:
        return obeys(terms, dx, bound, m1, m2)

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


def explain_unwritten(terms: Terms, dx: Array, bound: Array, true: Array) -> Explanation | None:
    """Whole rows or columns of dx that are zero, or twice what they should be, where all others are right."""
    true = true.reshape(dx.shape)
    right = np.abs(true - dx) <= bound
    for axis, what in ((1, "row"), (0, "column")):
        odd = ~right.all(axis) & (right.mean(axis) < EXPLAINED)
        for weight, name, text in ((0.0, "{}s of dx never written", "dx is zero in whole {}s"),
                                   (2.0, "{}s of dx counted twice", "dx is twice what it should be in whole {}s")):  # fmt: skip
            some = odd & (np.abs(weight * true - dx) <= weight * bound).all(axis)
            if some.any() and not some.all() and (some | (right.mean(axis) >= EXPLAINED)).all():
                weights = np.where(some, weight, 1.0)
                which = describe_weights(weights, what)
                found = Difference(name.format(what), f"{text.format(what)}: {which}.")
                parts = ((f"w_{what}", True), ("·", False), (RIGHT["dx"], False))
                return Explanation(Formula("dx", parts), (found,), (Weights("dx", what, runs_of(weights), which),))
    return None
