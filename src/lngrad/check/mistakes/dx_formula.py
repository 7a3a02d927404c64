"""The formula that a wrong dx obeys: least squares over all choices for its three terms, the simplest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lngrad.check.mistakes.dx_terms import Candidate, Choices, First, Mean, Second
from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation, coefficient_text
from lngrad.check.mistakes.masks import describe_weights, recover_weights, runs_of
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula, Weights
from lngrad.typing import Array

__all__ = ["explain_dx", "explain_partial_means", "explain_unwritten"]

MOST_SAMPLES = 1000
SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
MOST_CHECKED = 60  # candidates whose residual is computed element by element
MOST_FITTING = 10  # of a scale: the simplest come first
MOST_COST = 3


@dataclass(frozen=True)
class _Fit:
    candidate: Candidate
    coefficients: tuple[float, float, float]
    cost: float


def explain_dx(terms: Terms, dx: Array, bound: Array, depth: int = 2) -> Explanation | None:
    """The simplest formula that a wrong dx obeys, or None.

    Args:
        terms: Of the inputs.
        dx: (rows, N), as it came, in float64.
        bound: (rows, N), the error that a right dx may have.
        depth: In how many choices, besides coefficients, the formula may differ from the right one.
    """
    usable = np.isfinite(dx) & np.isfinite(bound)
    if usable.sum() < 16 or terms.N < 2:
        return None
    choices = Choices(terms)
    rows, columns = _sample(usable)
    fits = []
    for candidate, coefficients, free in _least_squares(choices, dx, bound, rows, columns, depth):
        # A factor of all three terms is one difference.
        odd = 1 if len(set(coefficients)) == 1 else sum(one != 1 for one in coefficients)
        cost = candidate.cost + (odd if coefficients != (1, 1, 1) else 0) + free
        if cost and cost <= MOST_COST:
            fits.append(_Fit(candidate, coefficients, cost))
    for fit in sorted(fits, key=lambda one: one.cost)[:8]:
        left = np.abs(_evaluated(choices, fit) - dx)[usable] <= SLACK * bound[usable]
        if left.mean() >= EXPLAINED:
            return _explanation(fit, terms)
    return None


def _sample(usable: Array) -> tuple[Array, Array]:
    places = np.flatnonzero(usable)
    if len(places) > MOST_SAMPLES:
        places = np.sort(np.random.default_rng(0).choice(places, MOST_SAMPLES, replace=False))
    rows, columns = np.divmod(places, usable.shape[1])
    return rows, columns


def _least_squares(
    choices: Choices, dx: Array, bound: Array, rows: Array, columns: Array, depth: int
) -> list[tuple[Candidate, tuple[float, float, float], float]]:
    """(candidate, coefficients, cost of those that are no plain number) of all that fit the sampled elements."""
    weight = 1 / np.maximum(bound[rows, columns], 1e-9 * np.abs(dx).max())
    target = dx[rows, columns] * weight
    terms: list[First | Mean | Second] = [*choices.firsts, *choices.means, *choices.seconds]
    place = {term: number for number, term in enumerate(terms)}
    signs = np.array([1.0] * len(choices.firsts) + [-1.0] * (len(terms) - len(choices.firsts)))
    raw = np.stack([choices.values(term)[rows, columns] for term in terms]) * signs[:, None]
    candidates = list(choices.candidates(depth))
    found = []
    for scale in dict.fromkeys(candidate.scale for candidate in candidates):
        basis = raw * (choices.scale(scale)[rows, 0] * weight)
        gram, right = basis @ basis.T, basis @ target
        group = [candidate for candidate in candidates if candidate.scale == scale]
        index = np.array([[place[one.first], place[one.mean], place[one.second]] for one in group])
        A = gram[index[:, :, None], index[:, None, :]]
        b = right[index]
        size = np.sqrt(np.maximum(np.einsum("kii->ki", A), 1e-300))
        scaled = A / size[:, :, None] / size[:, None, :] + 1e-12 * np.eye(3)
        solved = np.linalg.solve(scaled, (b / size)[..., None])[..., 0]
        left = target @ target - np.einsum("ki,ki->k", solved, b / size)
        order = np.lexsort((np.array([one.cost for one in group]), left > 4 * len(target) + 1e-9 * (target @ target)))
        fitting = 0
        for k in order[:MOST_CHECKED]:
            snapped = _snapped(basis[index[k]], target, solved[k] / size[k], choices.terms)
            if snapped is not None:
                found.append((group[k], *snapped))
                fitting += 1
                if fitting == MOST_FITTING:
                    break
    return found


def _snapped(basis: Array, target: Array, free: Array, terms: Terms) -> tuple[tuple[float, float, float], float] | None:
    """Coefficients made plain numbers where the fit stays; and what others cost."""
    if not _fits(free @ basis - target):
        return None
    N, M = terms.N, terms.M
    plain = [1.0, 0.0, 2.0, -1.0, 0.5, float(N), 1 / N, N / (N - 1), 1 - 1 / N, 3.0, -2.0, 4.0, 1.5, 1 / M, float(M)]
    coefficients, cost = free.copy(), 0.0
    for at in range(3):
        best = None
        for number in plain:
            trial = coefficients.copy()
            trial[at] = number
            others = [other for other in range(3) if other > at]
            if others:  # those that are still free follow
                rest = target - sum(trial[one] * basis[one] for one in range(at + 1))
                trial[others] = np.linalg.lstsq(basis[others].T, rest, rcond=1e-10)[0]
            if _fits(trial @ basis - target):
                best = trial
                break
        if best is None:
            cost += 1
        else:
            coefficients = best
    return (float(coefficients[0]), float(coefficients[1]), float(coefficients[2])), cost


def _fits(left: Array) -> bool:
    return bool(np.mean(np.abs(left) <= SLACK) >= EXPLAINED)


def _evaluated(choices: Choices, fit: _Fit) -> Array:
    one, (c0, c1, c2) = fit.candidate, fit.coefficients
    inner = c0 * choices.values(one.first)
    if c1:
        inner = inner - c1 * choices.values(one.mean)
    if c2:
        inner = inner - c2 * choices.values(one.second)
    return choices.scale(one.scale) * inner


def _explanation(fit: _Fit, terms: Terms) -> Explanation:
    one = fit.candidate
    parts: list[tuple[str, bool]] = []
    factor = _factor(fit)
    if factor != 1:
        parts += [(coefficient_text(factor, terms.N, terms.M), True), ("·", False)]
    if one.scale:
        parts += [(one.scale, one.scale != "rstd"), ("·(", False)]
    else:
        parts += [("1", True), ("·(", False)]
    rights: list[First | Mean | Second] = [First(), Mean(), Second()]
    wrongs: list[First | Mean | Second] = [one.first, one.mean, one.second]
    coefficients = (1.0, 1.0, 1.0) if factor != 1 else fit.coefficients
    for number, (coefficient, term, right) in enumerate(zip(coefficients, wrongs, rights, strict=True)):
        sign = "" if number == 0 else " − " if coefficient >= 0 else " + "
        if coefficient == 0:
            parts += [(sign, False), ("0", True), ("·" + right.text, False)]
            continue
        parts.append((sign, False))
        size = coefficient if number == 0 else abs(coefficient)
        if size != 1 or (coefficient < 0 and number):
            parts += [(coefficient_text(size, terms.N, terms.M), True), ("·", False)]
        parts.append((term.text, term != right))
    parts.append((")", False))
    merged = tuple(part for part in parts if part[0])
    return Explanation(Formula("dx", merged), tuple(_differences(fit, terms)))


def _factor(fit: _Fit) -> float:
    """Of all three terms, where they have the same; else 1."""
    first, second, third = fit.coefficients
    return first if first == second == third and first else 1.0


_LABELS = ("dxhat", "mean of dxhat", "mean of dxhat·xhat")
_TAKES = (
    "it takes dxhat once",
    "subtract the row mean of dxhat once",
    "subtract xhat times the row mean of dxhat·xhat once",
)


def _differences(fit: _Fit, terms: Terms) -> list[Difference]:
    one, found = fit.candidate, []
    if one.scale != "rstd":
        found.append(
            Difference(f"{one.scale or '1'} for rstd", f"dx is multiplied by {one.scale or '1'}: it takes rstd.")
        )
    if "of" in one.shared:
        found.append(
            Difference(f"{one.first.of} for dxhat", f"dx is computed from {one.first.of}: it takes dxhat = dy·gamma.")
        )
    if "over" in one.shared:
        over = _over_text(one.mean.over)
        found.append(Difference(f"means over {one.mean.over}", f"the two means go {over}: they go over one row."))
    if one.first != First() and "of" not in one.shared:
        found.append(Difference(f"{one.first.of} for dxhat in the first term",
                                f"the first term of dx is {one.first.of}: it takes dxhat = dy·gamma."))  # fmt: skip
    rights = (
        Mean(one.first.of if "of" in one.shared else "dxhat"),
        Second(one.first.of if "of" in one.shared else "dxhat"),
    )
    if "over" not in one.shared:
        for coefficient, term, right, label in (
            (fit.coefficients[1], one.mean, rights[0], "mean of dxhat"),
            (fit.coefficients[2], one.second, rights[1], "mean of dxhat·xhat"),
        ):
            if coefficient and term != right:
                found.append(_other_term(term, label))
    factor = _factor(fit)
    if factor != 1:
        times = coefficient_text(factor, terms.N, terms.M)
        return [*found, Difference(f"dx {times} times", f"dx is {times} times what it should be.")]
    for coefficient, label, takes in zip(fit.coefficients, _LABELS, _TAKES, strict=True):
        if coefficient == 0:
            found.append(Difference(f"{label} missing", f"dx lacks the {label}: {takes}."))
        elif coefficient != 1:
            times = coefficient_text(coefficient, terms.N, terms.M)
            found.append(Difference(f"{label} {times} times", f"dx has {times} times the {label}: {takes}."))
    return found


def _other_term(term: Mean | Second, label: str) -> Difference:
    if term.outer.startswith("γ"):
        return Difference(f"gamma twice in the {label}", f"the term with the {label} is multiplied by gamma once more: "
                          "gamma is in dxhat already.")  # fmt: skip
    if term.over != "row":
        return Difference(
            f"{label} over {term.over}", f"the {label} goes {_over_text(term.over)}: it goes over one row."
        )
    return Difference(f"{term.text} for the {label}", f"dx subtracts {term.text} where the {label} belongs.")


def _over_text(over: str) -> str:
    texts = {
        "rows": "over axis 0, the rows",
        "all": "over the whole tensor",
        "previous row": "over the row before",
        "next row": "over the row after",
        "last axis": "over the last axis only",
        "sample": "over all rows of a sample, as if the first dimension counted the rows",
    }
    return texts.get(over) or f"over a {over} together, a sum without its axis"


def explain_partial_means(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """Row means that do not take every column once: which columns they take."""
    M, N = terms.dy.shape
    if M < 4 or N < 4 or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    # dxhat − dx/rstd = m1 + xhat·m2 for each row: two unknowns, by least squares.
    left = terms.dxhat - dx / terms.rstd
    centre, spread = terms.xhat.mean(1, keepdims=True), terms.xhat - terms.xhat.mean(1, keepdims=True)
    second = (left * spread).sum(1) / np.maximum(np.square(spread).sum(1), 1e-300)
    first = left.mean(1) - centre[:, 0] * second
    right_first, right_second = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)

    def fits(m1: Array, m2: Array) -> bool:
        made = terms.rstd * (terms.dxhat - m1[:, None] - terms.xhat * m2[:, None])
        return bool(np.mean(np.abs(made - dx) <= SLACK * bound) >= EXPLAINED)

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
