"""The choices that a wrong dx is made of: factors, what is averaged and over what, and which term they stand in.

A dx is scale·(c0·D − c1·mean(D) − c2·X·mean(D·Y)). The right one has scale rstd, D = dxhat, X = Y = xhat, means over the row
and coefficients 1. Every choice has its formula as text, for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from lngrad.check.mistakes.fit import Terms
from lngrad.typing import Array

SCALES = {"rstd": 1.0, "": 0.0, "rstd²": 2.0, "rstd³": 3.0, "√variance": -1.0}  # powers of rstd


@dataclass(frozen=True)
class Over:
    """What a mean goes over.

    Attributes:
        text: In words.
        applies: Whether a case has it.
        mean: Of a product, (rows, N), as what broadcasts to that.
    """

    text: str
    applies: Callable[[Terms], bool]
    mean: Callable[[Terms, Array], Array]


def _of_rows(values: Array) -> Array:
    return np.asarray(values.mean(1, keepdims=True))


def _of_last_axis(t: Terms, values: Array) -> Array:
    last = t.normalized[-1]
    return np.repeat(values.reshape(t.M, t.N // last, last).mean(2), last, axis=1)


def _of_samples(t: Terms, values: Array) -> Array:
    return np.repeat(_of_rows(values).reshape(t.lead[0], -1).mean(1), t.M // t.lead[0]).reshape(t.M, 1)


def _block(size: int) -> Over:
    def sums(t: Terms, values: Array) -> Array:
        return np.repeat(np.add.reduceat(_of_rows(values), np.arange(0, t.M, size), axis=0), size, axis=0)[: t.M]

    return Over(f"over a block of {size} rows together, a sum without its axis", lambda t: size <= t.M, sums)


OVER = {
    "row": Over("over one row", lambda t: True, lambda t, values: _of_rows(values)),
    "rows": Over("over axis 0, the rows", lambda t: t.M > 1, lambda t, values: values.mean(0, keepdims=True)),
    "all": Over("over the whole tensor", lambda t: t.M > 1, lambda t, values: values.mean(keepdims=True)),
    "previous row": Over("over the row before", lambda t: t.M > 1, lambda t, values: np.roll(_of_rows(values), 1, 0)),
    "next row": Over("over the row after", lambda t: t.M > 1, lambda t, values: np.roll(_of_rows(values), -1, 0)),
    **{f"block of {size} rows": _block(size) for size in (2, 4, 8, 16, 32)},
    "last axis": Over(
        "over the last axis only", lambda t: len(t.normalized) > 1 and t.normalized[-1] > 1, _of_last_axis
    ),
    "sample": Over(
        "over all rows of a sample, as if the first dimension counted the rows",
        lambda t: len(t.lead) > 1 and 1 < t.lead[0] < t.M,
        _of_samples,
    ),
}


@dataclass(frozen=True)
class Term:
    """One of the three terms: outer·D, outer·mean(D), or outer·mean(D·inner).

    Attributes:
        of: D.
        over: What the mean goes over; "" for the term without one.
        inner: Y.
        outer: What stands before it, with "·" behind: X, or a factor that one term alone has too much.
    """

    of: str = "dxhat"
    over: str = ""
    inner: str = ""
    outer: str = ""

    @property
    def text(self) -> str:
        product = f"{self.of}·{self.inner}" if self.inner else self.of
        if not self.over:
            return self.outer + product
        if self.over != "row":
            kind = "sum" if self.over.startswith("block") else "mean"
            return f"{self.outer}{kind}_{self.over.replace(' ', '_')}({product})"
        right = {"dxhat": "mean_dxhat", "dxhat·xhat": "mean_dxhat_xhat"}
        return self.outer + right.get(product, f"mean({product})")


Terms3 = tuple[Term, ...]
RIGHT_TERMS = (Term(), Term(over="row"), Term(over="row", inner="xhat", outer="xhat·"))


def made_of(of: str, over: str) -> Terms3:
    """The right terms of another D, with means over something else."""
    return Term(of), Term(of, over), Term(of, over, "xhat", "xhat·")


@dataclass(frozen=True)
class Candidate:
    """One formula without its coefficients.

    Attributes:
        scale, terms: What it is made of.
        cost: In how many choices it differs from the right one; a factor that all terms share counts once.
        shared: The names of shared choices that differ: of, over.
    """

    scale: str
    terms: Terms3
    cost: int
    shared: tuple[str, ...] = ()


class Choices:
    """Every choice for some inputs, as arrays."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._products: dict[tuple[str, str], Array] = {}
        gamma, xhat, rstd = terms.gamma, terms.xhat, terms.rstd
        of_gamma = "(offset+γ)" if terms.normalization.offset else "γ"
        factors = {
            "dxhat": gamma,
            "dy": np.ones_like(gamma),
            f"dy·{of_gamma}²": gamma**2,
            f"dy·(1+{of_gamma})": 1 + gamma,
            f"dy·({of_gamma}−1)": gamma - 1,
        }
        # Without a gamma, or with ones, all but 2·dy and 0 are the same.
        self.factors = factors if (gamma != 1).any() else {"dxhat": gamma}
        self.over = [name for name, over in OVER.items() if over.applies(terms)]
        centred = {"(x−mean)": terms.x - terms.mean} if terms.normalization.centred else {}
        self.inner = {"xhat": xhat, **centred, "x": terms.x}
        self.outer = {
            "": np.ones((1, 1)), "rstd·": rstd, "1/rstd·": 1 / rstd, "γ·": gamma,
            **{f"{name}·": one for name, one in self.inner.items()}, "rstd·xhat·": rstd * xhat, "γ·xhat·": gamma * xhat,
        }  # fmt: skip
        powers = ("rstd·", "1/rstd·")
        once_more = self.factors if len(self.factors) > 1 else ()
        pairs = [(of, over) for of in self.factors for over in self.over]
        self.options: tuple[list[Term], list[Term], list[Term]] = (
            [*map(Term, self.factors), *(Term(outer=power) for power in powers)],
            [
                *(Term(of, over) for of, over in pairs),
                *(Term(over="row", outer=power) for power in powers),
                *(Term(of, "row", outer="γ·") for of in once_more),
            ],
            [
                *(Term(of, over, "xhat", "xhat·") for of, over in pairs),
                *(Term("dxhat", "row", inner, f"{outer}·") for inner in self.inner for outer in self.inner
                  if inner != "xhat" or outer != "xhat"),
                Term("dxhat", "row", "xhat", "rstd·xhat·"),
                *(Term(of, "row", "xhat", "γ·xhat·") for of in once_more),
            ],
        )  # fmt: skip

    def values(self, term: Term) -> Array:
        """A term without its coefficient, broadcast to (rows, N)."""
        key = term.of, term.inner
        if key not in self._products:
            product = self.terms.dy * self.factors[term.of]
            self._products[key] = product * self.inner[term.inner] if term.inner else product
        inner = self._products[key]
        if term.over:
            inner = OVER[term.over].mean(self.terms, inner)
        return np.broadcast_to(self.outer[term.outer] * inner, self.terms.dy.shape)

    def scale(self, name: str) -> Array:
        return np.asarray(self.terms.rstd ** SCALES[name])

    def candidates(self, depth: int) -> Iterator[Candidate]:
        """Formulas that differ from the right one in at most `depth` choices, the simplest first."""
        found = list(self._shared(depth))
        for base in list(found):
            if base.cost < depth:
                found += self._with_one_changed(base)
        if depth >= 2:
            found += self._with_two_changed()
        return iter(sorted(found, key=lambda one: one.cost))

    def _shared(self, depth: int) -> Iterator[Candidate]:
        for scale, of, over in product(SCALES, self.factors, self.over):
            shared = (*["of"] * (of != "dxhat"), *["over"] * (over != "row"))
            cost = len(shared) + (scale != "rstd")
            if cost <= depth:
                yield Candidate(scale, made_of(of, over), cost, shared)

    def _others(self, place: int, right: Term) -> list[Term]:
        return [one for one in self.options[place] if one != right]

    def _with_one_changed(self, base: Candidate) -> Iterator[Candidate]:
        for place, right in enumerate(base.terms):
            for one in self._others(place, right):
                yield Candidate(base.scale, _with(base.terms, place, one), base.cost + 1, base.shared)

    def _with_two_changed(self) -> Iterator[Candidate]:
        others = [self._others(place, right) for place, right in enumerate(RIGHT_TERMS)]
        for place, second_places in ((1, (0, 2)), (2, (0,))):
            for changed, other in product(others[place], second_places):
                terms = _with(RIGHT_TERMS, place, changed)
                yield from (Candidate("rstd", _with(terms, other, one), 2) for one in others[other])


def _with(terms: Terms3, place: int, one: Term) -> Terms3:
    return (*terms[:place], one, *terms[place + 1 :])
