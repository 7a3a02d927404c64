"""The formula that a wrong dx obeys: least squares over all choices for its three terms, the simplest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from lngrad.check.mistakes.fit import SLACK, TINY, Difference, Explanation, Fit, nearly_all, number_text, padded_sizes
from lngrad.check.mistakes.terms import OVER, RIGHT_TERMS, Candidate, Choices, Term, Terms, candidates, made_of
from lngrad.typing import Array

MAX_SAMPLES = 1000
MAX_CHECKED = 60  # candidates whose residual is computed element by element
MAX_FITTING = 10  # of a scale, without free numbers: the simplest come first
MAX_COST = 3
FLAT = 1e-3  # xhat, of an x that is constant: then dx is rstd·(dxhat − mean_dxhat), whatever rstd is
MAX_EVALUATED = 8  # candidates that fit the samples
Coefficients = tuple[float, float, float]


@dataclass(frozen=True)
class _Found:
    candidate: Candidate
    coefficients: Coefficients
    cost: float
    rights: Coefficients

    @property
    def factor(self) -> float:
        """Of all three terms, where they have the same; else 1."""
        return self.coefficients[0] if self.coefficients[0] and _is_multiple(self.coefficients, self.rights) else 1.0


def _rights(terms: Terms) -> Coefficients:
    return 1.0, float(terms.normalization.centred), 1.0


def _is_multiple(coefficients: Coefficients, rights: Coefficients) -> bool:
    return all(coefficient == coefficients[0] * right for coefficient, right in zip(coefficients, rights, strict=True))


def explain_dx(fit: Fit) -> Explanation | None:
    """The simplest formula that a wrong dx obeys: its terms, means and coefficients by least squares."""
    usable = np.isfinite(fit.result) & np.isfinite(fit.bound)
    if usable.sum() < 16 or fit.terms.N < 2:
        return None
    choices, rights, rstd = Choices(fit.terms), _rights(fit.terms), fit.terms.rstd
    fitting, is_one = [], np.ptp(rstd) <= FLAT * np.abs(rstd).max()
    for candidate, coefficients, free in _least_squares(choices, fit, *_sample(usable)):
        # A factor of all three terms is one difference.
        odd = sum(coefficient != right for coefficient, right in zip(coefficients, rights, strict=True))
        cost = candidate.cost + (min(odd, 1) if _is_multiple(coefficients, rights) else odd) + free
        # A number of its own before a mean that is the same in all rows looked at fits any such number, as one rstd's of all.
        is_times = candidate.cost and coefficients[0] != 1 and _is_multiple(coefficients, rights)
        alike = fit.terms.M == 1 or {term.over for term in candidate.terms[1:]} != {"row"}
        if cost and cost <= MAX_COST and not (free and alike) and not (is_times and is_one):
            fitting.append(_Found(candidate, coefficients, cost, rights))
    for found in sorted(fitting, key=lambda item: item.cost)[:MAX_EVALUATED]:
        left = (np.abs(_evaluated(choices, found) - fit.of_norm) / fit.bound)[usable]
        if nearly_all(left <= SLACK) and np.sqrt(np.mean(np.minimum(left, 1e30) ** 2)) <= fit.max_left:
            return Explanation(fit.formula(_formula(found, fit.terms)), tuple(_differences(found, fit.terms)))
    return None


def _sample(usable: Array) -> tuple[Array, Array]:
    places = np.flatnonzero(usable)
    if len(places) > MAX_SAMPLES:
        places = np.sort(np.random.default_rng(0).choice(places, MAX_SAMPLES, replace=False))
    rows, columns = np.divmod(places, usable.shape[1])
    return rows, columns


def _least_squares(
    choices: Choices, fit: Fit, rows: Array, columns: Array
) -> list[tuple[Candidate, Coefficients, float]]:
    """(candidate, coefficients, cost of those that are no plain number) of all that fit the sampled elements."""
    weight = 1 / np.maximum(fit.bound[rows, columns], 1e-9 * np.abs(fit.result).max())
    target = fit.of_norm[rows, columns] * weight
    terms = [*chain(*choices.options)]
    signs = np.array([-1.0 if term.over else 1.0 for term in terms])
    raw = np.stack([choices.values(term)[rows, columns] for term in terms]) * signs[:, None]
    found = []
    for scale, group, index, costs in candidates(*choices.names, fit.depth):
        basis = raw * (choices.scale(scale)[rows, 0] * weight)
        gram, right = basis @ basis.T, basis @ target
        A = gram[index[:, :, None], index[:, None, :]]
        b = right[index]
        size = np.sqrt(np.maximum(np.einsum("kii->ki", A), TINY))
        scaled = A / size[:, :, None] / size[:, None, :] + 1e-12 * np.eye(3)
        solved = np.linalg.solve(scaled, (b / size)[..., None])[..., 0]
        left = target @ target - np.einsum("ki,ki->k", solved, b / size)
        order = np.lexsort((costs, left > 4 * len(target) + 1e-9 * (target @ target)))
        fitting = 0
        for k in order[:MAX_CHECKED]:
            snapped = _snapped(basis[index[k]], target, solved[k] / size[k], choices.terms)
            # A term that differs and has the coefficient 0: a simpler formula says the same.
            if snapped is not None and (group[k].shared or all(
                term == right or times for term, right, times in zip(group[k].terms, RIGHT_TERMS, snapped[0], strict=True)
            )):  # fmt: skip
                found.append((group[k], *snapped))
                fitting += not snapped[1]
                if fitting == MAX_FITTING:
                    break
    return found


def _snapped(basis: Array, target: Array, free: Array, terms: Terms) -> tuple[Coefficients, float] | None:
    """Coefficients made plain numbers where the fit stays; and what others cost."""
    if not _fits(free @ basis - target):
        return None
    N, M, rights = terms.N, terms.M, _rights(terms)
    whole = np.asarray(rights) @ basis
    factor = float(whole @ target / max(whole @ whole, TINY))
    of_sizes = float(N), 1 / N, N / (N - 1), 1 - 1 / N, 1 / M, float(M), N / M, *(N / P for P in padded_sizes(N))
    plain = [1.0, 0.0, 2.0, -1.0, 0.5, *of_sizes[:4], 3.0, -2.0, 4.0, 1.5, *of_sizes[4:]]
    near = (number for number in plain if abs(factor - number) <= 0.01 * abs(number))
    is_one = abs(factor - 1) < FLAT or any(_fits(number * whole - target) for number in near)
    if not is_one and _fits(factor * whole - target):
        return (factor, factor * rights[1], factor), 0.0
    coefficients, cost = free.copy(), 0.0
    for at in range(3):
        best = None
        for number in (rights[at], *plain):
            trial = coefficients.copy()
            trial[at] = number
            others = [other for other in range(3) if other > at]
            if others:  # those that are still free follow
                rest = target - sum(trial[name] * basis[name] for name in range(at + 1))
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
    return bool(nearly_all(np.abs(left) <= SLACK))


def _evaluated(choices: Choices, found: _Found) -> Array:
    c0, c1, c2 = found.coefficients
    first, mean, second = (choices.values(term) for term in found.candidate.terms)
    inner = c0 * first - (c1 * mean if c1 else 0.0) - (c2 * second if c2 else 0.0)
    return choices.scale(found.candidate.scale) * inner


def _formula(found: _Found, terms: Terms) -> str:
    """With what differs from the right formula between two asterisks."""
    found_formula, factor = found.candidate, found.factor
    text = f"**{number_text(factor, terms.N, terms.M)}**·" if factor != 1 else ""
    text += "rstd·(" if found_formula.scale == "rstd" else f"**{found_formula.scale or '1'}**·("
    coefficients = found.rights if factor != 1 else found.coefficients
    for number, (coefficient, term, right) in enumerate(
        zip(coefficients, found_formula.terms, RIGHT_TERMS, strict=True)
    ):
        if coefficient == found.rights[number] == 0:
            continue
        text += "" if number == 0 else " − " if coefficient >= 0 else " + "
        if coefficient == 0:
            text += f"**0**·{right.text}"
            continue
        size = coefficient if number == 0 else abs(coefficient)
        if size != 1 or (coefficient < 0 and number):
            text += f"**{number_text(size, terms.N, terms.M, of_mean=number > 0)}**·"
        text += term.text if term == right and found.rights[number] else f"**{term.text}**"
    return terms.with_dtotal(text, ")")


_LABELS = ("dxhat", "mean of dxhat", "mean of dxhat·xhat")
_TAKES = ("it takes dxhat once", "subtract the row mean of dxhat once",
          "subtract xhat times the row mean of dxhat·xhat once")  # fmt: skip


def _differences(best: _Found, terms: Terms) -> list[Difference]:
    """In words: the factor before the bracket, what the terms share, each term, and the coefficients."""
    parts = [term.of for term in best.candidate.terms] if "of" in best.candidate.shared else []
    shared = next((of for of in parts if parts.count(of) > 1), "dxhat")  # of at least two of the three terms
    return [*_scale(best), *_shared(best, shared, terms), *_each_term(best, shared, terms), *_coefficients(best, terms)]


def _scale(best: _Found) -> Iterator[Difference]:
    if best.candidate.scale != "rstd":
        scale = best.candidate.scale or "1"
        yield Difference(f"{scale} for rstd", f"dx is multiplied by {scale}: it takes rstd.")


def _shared(best: _Found, shared: str, terms: Terms) -> Iterator[Difference]:
    first, mean, _ = best.candidate.terms
    if shared != "dxhat":
        where = "" if first.of == shared else " in the row means"
        text = f"the two row means are of {shared}: they are" if where else f"dx is computed from {shared}: it is"
        yield Difference(f"{shared} for dxhat{where}", f"{text} of dxhat = {terms.dxhat_text}.")
    if "over" in best.candidate.shared:
        text = f"the two means go {OVER[mean.over].text}: they go over one row."
        yield Difference(f"means over {mean.over}", text)


def _each_term(best: _Found, shared: str, terms: Terms) -> Iterator[Difference]:
    first, *means = best.candidate.terms
    if first.outer or first.of not in ("dxhat", shared):
        power = "all three terms take rstd once, which stands before the bracket"
        why = power if first.outer else f"it takes dxhat = {terms.dxhat_text}"
        yield Difference(f"{first.text} for dxhat in the first term", f"the first term of dx is {first.text}: {why}.")
    if "over" in best.candidate.shared:
        return
    of_means = (best.coefficients[1:], means, made_of(shared, "row")[1:], _LABELS[1:], best.rights[1:])
    for coefficient, term, right, label, wanted in zip(*of_means, strict=True):
        if coefficient and not wanted:
            text = f"dx subtracts the {label}: without a mean in the norm there is no such term."
            yield Difference(f"{label} subtracted", text)
        elif coefficient and term != right:
            yield _other_term(term, label)


def _coefficients(best: _Found, terms: Terms) -> Iterator[Difference]:
    coefficients = best.coefficients
    if best.factor != 1:
        times = number_text(best.factor, terms.N, terms.M)
        what = "dx" if np.abs(terms.xhat).max() > FLAT else "dx or rstd"
        why = "." if what == "dx" else "; or rstd is, which can't be told apart where x is constant."
        yield Difference(f"{what} {times} times", f"dx is {times} times what it should be{why}")
        return
    if coefficients[1] == coefficients[2] not in (0.0, 1.0) and best.rights[1] == coefficients[0] == 1:
        yield _times(coefficients[1], "two row means", "are", "subtract each of them once", terms)
        return
    for coefficient, label, takes, wanted in zip(coefficients, _LABELS, _TAKES, best.rights, strict=True):
        if wanted and coefficient == 0:
            yield Difference(f"{label} missing", f"dx lacks the {label}: {takes}.")
        elif wanted and coefficient != 1:
            yield _times(coefficient, label, "is", takes, terms)


def _times(coefficient: float, label: str, verb: str, takes: str, terms: Terms) -> Difference:
    """A term that is there with another number before it, and what such a number is known for."""
    N, times = terms.N, number_text(coefficient, terms.N, terms.M, of_mean=label != _LABELS[0])
    if label == _LABELS[0]:
        return Difference(f"{label} {times} times", f"dx has {times} times {label}: {takes}.")
    padded = {f"N/{P}": (P, why) for P, why in padded_sizes(N).items()}.get(times)
    if padded is not None:
        size, why = padded
        return Difference(f"{label} over a padded N", f"the {label} {verb} divided by {size}, which is N = {N} rounded up "
                          f"to {why}: divide by N, not by the size of the buffer.")  # fmt: skip
    if times == "N/M":
        return Difference(
            f"{label} over M", f"the {label} {verb} divided by {terms.M}, the number of rows: divide by N."
        )
    if times == "N/(N−1)":
        return Difference(f"{label} over N − 1", f"the {label} {verb} divided by N − 1: divide by N.")
    return Difference(f"{label} {times} times", f"dx has {times} times the {label}: {takes}.")


def _other_term(term: Term, label: str) -> Difference:
    if term.outer.startswith("γ") and term.of == "dy":
        return Difference(f"gamma outside the {label}", f"gamma stands before the {label}, and not inside it: the mean is of "
                          "dy·gamma.")  # fmt: skip
    if term.outer.startswith("γ"):
        return Difference(f"gamma twice in the {label}", f"the term with the {label} is multiplied by gamma once more: "
                          "gamma is in dxhat already.")  # fmt: skip
    if term.over != "row":
        return Difference(
            f"{label} over {term.over}", f"the {label} goes {OVER[term.over].text}: it goes over one row."
        )
    return Difference(f"{term.text} for the {label}", f"dx subtracts {term.text} where the {label} belongs.")
