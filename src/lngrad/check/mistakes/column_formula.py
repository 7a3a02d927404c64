"""The formula that a wrong dgamma or dbeta obeys: what is summed over the rows, how often, and which rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lngrad.check.mistakes.added import explain_added
from lngrad.check.mistakes.formula import RIGHT, Difference, Explanation, coefficient_text
from lngrad.check.mistakes.masks import describe_places, describe_weights, recover_weights, runs_of
from lngrad.check.mistakes.places import explain_moved_columns
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula, Weights
from lngrad.typing import Array

SLACK = 4.0
EXPLAINED = 0.995
NEIGHBOURS = (1, 2, 4, 8, 16, 32)
_TIMES = {
    "−1": "{name} has the opposite sign.",
    "1/M": "{name} is divided by the number of rows: it is their sum, and no mean.",
    "1/N": "{name} is divided by the number of columns: it is a sum over rows.",
}
LEAST_FACTOR = 0.01  # that a whole column sum is off by
MOST_COLUMNS = 0.95  # wrong, for columns that are right to be left out
MOST_WEIGHTED = 4 << 20  # elements: weights of rows are not looked for in larger cases


def explain_columns(terms: Terms, name: str, result: Array, bound: Array, true: dict[str, Array]) -> Explanation | None:
    """The simplest formula that a wrong column sum obeys, every row counted once; or None.

    Args:
        terms: Of the inputs.
        name: dgamma or dbeta.
        result, bound: (N,) in float64: as it came, and the error that a right one may have.
        true: The right gradients, in float64.
    """
    if len(result) < 4 or not np.isfinite(result).all():
        return None
    for number, (text, summed) in enumerate(_sums(terms, name, true)):
        for coefficient in _coefficients(summed, result, bound, terms, any_factor=number == 0):
            if (text, coefficient) == (RIGHT[name].removeprefix("Σ_rows "), 1.0):
                continue
            if _fits(coefficient * summed - result, bound + np.abs(coefficient * summed) * 1e-7):
                return _explanation(terms, name, text, coefficient)
    return (
        _column_weights(terms, name, result, bound, true[name])
        or _wrong_axis(terms, name, result, bound)
        or explain_moved_columns(terms, name, result, SLACK * bound, true[name])
        or explain_added(terms, name, result, SLACK * bound, true)
    )


def _wrong_axis(terms: Terms, name: str, result: Array, bound: Array) -> Explanation | None:
    """Sums over the columns, which have the right number of elements where there are as many rows."""
    text = RIGHT[name].removeprefix("Σ_rows ")
    summed = (terms.dy * terms.xhat if name == "dgamma" else terms.dy).sum(1)
    if terms.M != terms.N or not _fits(summed - result, bound + np.abs(summed) * 1e-7):
        return None
    found = Difference(f"{name} over the columns", f"{name} is summed over the columns, one number a row: it is a sum over "
                       "the rows.")  # fmt: skip
    return Explanation(Formula(name, (("Σ_columns", True), (" " + text, False))), (found,))


def _sums(terms: Terms, name: str, true: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """What could have been summed instead, the right one first."""
    dy, xhat, rstd = terms.dy, terms.xhat, terms.rstd
    gamma = terms.gamma[0]
    products = {
        "dgamma": (("dy·xhat", dy * xhat), ("dy·x", dy * terms.x), ("dy·(x−mean)", dy * (terms.x - terms.mean)),
                   ("dy·x·rstd", dy * terms.x * rstd), ("dy·xhat·rstd", dy * xhat * rstd), ("dy", dy), ("xhat", xhat),
                   ("dx·xhat", true["dx"] * xhat)),
        "dbeta": (("dy", dy), ("dy·xhat", dy * xhat), ("dy·rstd", dy * rstd), ("dx", true["dx"]), ("x", terms.x),
                  ("xhat", xhat)),
    }[name]  # fmt: skip
    sums = [(text, product.sum(0)) for text, product in products]
    yield from sums
    if (gamma != 1).any():
        (text, whole) = sums[0]
        yield f"{text}·γ", whole * gamma
        yield f"{text}·γ²", whole * gamma**2
        yield f"{text}·(1+γ)", whole * (1 + gamma)
        with np.errstate(divide="ignore", invalid="ignore"):
            yield f"{text}/γ", whole / gamma
    text, whole = sums[0]
    index = np.arange(len(whole))
    for step in NEIGHBOURS:
        if step < len(whole):
            other = np.where((index ^ step) < len(whole), index ^ step, index)
            yield f"{text} of columns j and j^{step}", whole + np.where(other == index, 0.0, whole[other])


def _coefficients(
    summed: Array, result: Array, bound: Array, terms: Terms, any_factor: bool = False
) -> Iterator[float]:
    """1, and the plain number that the ratio is near to, if there is one; any other ratio where that is wanted."""
    yield 1.0
    usable = np.isfinite(summed)
    weight = 1 / np.maximum(bound, 1e-300)
    size = float(np.square(summed * weight, where=usable, out=np.zeros_like(summed)).sum())
    if not np.isfinite(size) or size == 0:
        return
    ratio = float(np.where(usable, summed * result * weight**2, 0.0).sum()) / size
    M, N = terms.M, terms.N
    for plain in (2.0, -1.0, 0.5, 3.0, 4.0, float(M), 1 / M, float(N), 1 / N, 0.25, 8.0):
        if abs(ratio - plain) <= 0.01 * abs(plain):
            yield plain
    if any_factor and abs(ratio - 1) > LEAST_FACTOR:
        yield ratio


def _fits(left: Array, bound: Array) -> bool:
    return bool(np.mean(np.abs(left) <= SLACK * bound) >= EXPLAINED)


def _explanation(terms: Terms, name: str, text: str, coefficient: float) -> Explanation:
    right = RIGHT[name].removeprefix("Σ_rows ")
    parts: list[tuple[str, bool]] = []
    differences = []
    if coefficient != 1:
        times = coefficient_text(coefficient, terms.N, terms.M)
        parts += [(times, True), ("·", False)]
        differences.append(Difference(f"{name} {times} times", _TIMES.get(times, "{name} is {times} times what it "
                                      "should be.").format(name=name, times=times)))  # fmt: skip
    parts += [("Σ_rows ", False), (text, text != right)]
    if text != right:
        differences.append(
            Difference(f"{text} for {right} in {name}", f"{name} sums {text} over the rows: it sums {right}.")
        )
    return Explanation(Formula(name, tuple(parts)), tuple(differences))


def _column_weights(terms: Terms, name: str, result: Array, bound: Array, true: Array) -> Explanation | None:
    """Columns that are lost or counted twice as a whole."""
    true = true.reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.round(result / true)
    weights = np.where(np.abs(true) <= bound, 1.0, weights)
    if (weights == 1).all() or not set(weights.tolist()) <= {0.0, 1.0, 2.0} or not (weights == 1).any():
        return None
    if not _fits(weights * true - result, bound):
        return None
    text = describe_weights(weights, "column")
    found = Difference(f"part of the columns of {name}", f"not every column of {name} is right: {text}.")
    parts = (("w_column", True), ("·", False), (RIGHT[name], False))
    return Explanation(Formula(name, parts), (found,), (Weights(name, "column", runs_of(weights), text),))


def explain_rows(terms: Terms, results: dict[str, Array], bounds: dict[str, Array]) -> dict[str, Explanation] | None:
    """Which rows entered dgamma and dbeta, from those of the two that are wrong; or None.

    Args:
        terms: Of the inputs.
        results, bounds: (N,) each, by name, of the wrong ones.
    """
    if terms.M < 2 or terms.dy.size > MOST_WEIGHTED or not all(np.isfinite(one).all() for one in results.values()):
        return None
    products = {"dgamma": terms.dy * terms.xhat, "dbeta": terms.dy}
    A = np.concatenate([products[name].T for name in results])
    b, bound = np.concatenate(list(results.values())), np.concatenate([bounds[name] for name in results])

    weights, where = _rows_of(A, b, bound), ""
    if weights is None:
        wrong = np.any(
            [np.abs(products[name].sum(0) - results[name]) > SLACK * bounds[name] for name in results], axis=0
        )
        some = np.tile(wrong, len(results))
        if not MOST_COLUMNS > wrong.mean() > 0:
            return None
        weights, where = _rows_of(A[some], b[some], bound[some]), f" in {describe_places(wrong, 'column')}"
    if weights is None:
        return None
    text = describe_weights(weights, "row") + _why_so_many(weights, terms) + where
    found = {}
    for name in results:
        difference = Difference("part of the rows in the column sums", f"{' and '.join(results)}: not every row is counted "
                                f"once: {text}.")  # fmt: skip
        parts = (("Σ_rows ", False), ("w_row", True), ("·" + RIGHT[name].removeprefix("Σ_rows "), False))
        found[name] = Explanation(Formula(name, parts), (difference,), (Weights(name, "row", runs_of(weights), text),))
    return found


def _rows_of(A: Array, b: Array, bound: Array) -> Array | None:
    return recover_weights(A, b, lambda weights: _fits(A @ weights - b, bound))


def _why_so_many(weights: Array, terms: Terms) -> str:
    """What a number of rows that are counted is known for."""
    counted = int((weights == 1).sum())
    if not (weights[:counted] == 1).all():
        return ""
    if len(terms.lead) > 1 and counted == terms.lead[0]:
        return ", as many as x.shape[0]: the number of rows is the product of all leading sizes"
    if counted in (1 << 15, (1 << 16) - 1, 1 << 16):
        return ", the most that a 16-bit count or the y of a CUDA grid has"
    return ""
