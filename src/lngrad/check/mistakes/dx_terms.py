"""The choices that a wrong dx is made of: factors, what is averaged and over what, and which term they stand in.

A dx is scale·(c0·D − c1·mean(D) − c2·X·mean(D·Y)). The right one has scale rstd, D = dxhat, X = Y = xhat, means over the row
and coefficients 1. Every choice has its formula as text, for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lngrad.check.mistakes.fit import Terms
from lngrad.typing import Array

SCALES = {"rstd": 1.0, "": 0.0, "rstd²": 2.0, "rstd³": 3.0, "√variance": -1.0}  # powers of rstd
POWERS = {"rstd·": 1.0, "1/rstd·": -1.0}  # that one term alone has too much; (x−mean) is xhat/rstd


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


def _of_rows(product: Array) -> Array:
    return np.asarray(product.mean(1, keepdims=True))


def _of_last_axis(t: Terms, product: Array) -> Array:
    last = t.normalized[-1]
    return np.repeat(product.reshape(t.M, t.N // last, last).mean(2), last, axis=1)


def _of_samples(t: Terms, product: Array) -> Array:
    return np.repeat(_of_rows(product).reshape(t.lead[0], -1).mean(1), t.M // t.lead[0]).reshape(t.M, 1)


def _block(size: int) -> Over:
    def sums(t: Terms, product: Array) -> Array:
        return np.repeat(np.add.reduceat(_of_rows(product), np.arange(0, t.M, size), axis=0), size, axis=0)[: t.M]

    return Over(f"over a block of {size} rows together, a sum without its axis", lambda t: size <= t.M, sums)


OVER = {
    "row": Over("over one row", lambda t: True, lambda t, product: _of_rows(product)),
    "rows": Over("over axis 0, the rows", lambda t: t.M > 1, lambda t, product: product.mean(0, keepdims=True)),
    "all": Over("over the whole tensor", lambda t: t.M > 1, lambda t, product: product.mean(keepdims=True)),
    "previous row": Over("over the row before", lambda t: t.M > 1, lambda t, product: np.roll(_of_rows(product), 1, 0)),
    "next row": Over("over the row after", lambda t: t.M > 1, lambda t, product: np.roll(_of_rows(product), -1, 0)),
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
class First:
    """The term without a mean: D, times a power of rstd where `outer` says so."""

    of: str = "dxhat"
    outer: str = ""

    @property
    def text(self) -> str:
        return self.outer + self.of


@dataclass(frozen=True)
class Mean:
    """The second term: a mean of D, times gamma or a power of rstd where `outer` says so."""

    of: str = "dxhat"
    over: str = "row"
    outer: str = ""

    @property
    def text(self) -> str:
        return self.outer + _mean_text(self.of, self.over)


@dataclass(frozen=True)
class Second:
    """The third term: X times a mean of D·Y."""

    of: str = "dxhat"
    over: str = "row"
    inner: str = "xhat"
    outer: str = "xhat"

    @property
    def text(self) -> str:
        plain = self.of == "dxhat" and self.inner == "xhat" and self.over == "row"
        mean = "mean_dxhat_xhat" if plain else _mean_text(f"{self.of}·{self.inner}", self.over)
        return f"{self.outer}·{mean}"


def _mean_text(of: str, over: str) -> str:
    if over == "row":
        return "mean_dxhat" if of == "dxhat" else f"mean({of})"
    return f"{'sum' if over.startswith('block') else 'mean'}_{over.replace(' ', '_')}({of})"


@dataclass(frozen=True)
class Candidate:
    """One formula without its coefficients.

    Attributes:
        cost: In how many choices it differs from the right one; a factor that all terms share counts once.
        shared: The names of shared choices that differ: of, over.
    """

    scale: str
    first: First
    mean: Mean
    second: Second
    cost: int
    shared: tuple[str, ...] = ()


class Choices:
    """Every choice for some inputs, as arrays."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._products: dict[tuple[str, str], Array] = {}
        gamma = terms.gamma
        factors = {
            "dxhat": gamma,
            "dy": np.ones_like(gamma),
            "dy·γ²": gamma**2,
            "dy·(1+γ)": 1 + gamma,
            "dy·(γ−1)": gamma - 1,
        }
        # Without a gamma, or with ones, all but 2·dy and 0 are the same.
        self.factors = factors if (gamma != 1).any() else {"dxhat": gamma}
        self.over = [name for name, over in OVER.items() if over.applies(terms)]
        self.inner = {"xhat": terms.xhat, "(x−mean)": terms.x - terms.mean, "x": terms.x}

    def _mean(self, of: str, inner: str, over: str) -> Array:
        """A mean, of a shape that broadcasts to (rows, N)."""
        if (of, inner) not in self._products:
            product = self.terms.dy * self.factors[of]
            self._products[of, inner] = product * self.inner[inner] if inner else product
        return np.asarray(OVER[over].mean(self.terms, self._products[of, inner]))

    def values(self, term: First | Mean | Second) -> Array:
        """A term without its coefficient, broadcast to (rows, N)."""
        terms = self.terms
        if isinstance(term, First):
            return np.asarray(terms.dy * self.factors[term.of] * self._outer(term.outer))
        if isinstance(term, Mean):
            mean = self._mean(term.of, "", term.over)
            return np.broadcast_to(mean * self._outer(term.outer), terms.dy.shape)
        if term.outer in self.inner:
            outer = self.inner[term.outer]
        else:
            outer = self._outer(term.outer.removesuffix("xhat")) * terms.xhat
        return np.asarray(outer * self._mean(term.of, term.inner, term.over))

    def _outer(self, name: str) -> Array:
        """What stands before a term."""
        if name == "γ·":
            return self.terms.gamma
        return self.terms.rstd ** POWERS[name] if name else np.ones((1, 1))

    def scale(self, name: str) -> Array:
        return np.asarray(self.terms.rstd ** SCALES[name])

    @cached_property
    def firsts(self) -> list[First]:
        return [First(of) for of in self.factors] + [First(outer=power) for power in POWERS]

    @cached_property
    def means(self) -> list[Mean]:
        found = [Mean(of, over) for of in self.factors for over in self.over]
        found += [Mean(outer=power) for power in POWERS]
        return found + ([Mean(of, outer="γ·") for of in self.factors] if len(self.factors) > 1 else [])

    @cached_property
    def seconds(self) -> list[Second]:
        found = [Second(of, over) for of in self.factors for over in self.over]
        found += [Second("dxhat", "row", inner, outer) for inner in self.inner for outer in self.inner if inner != "xhat"
                  or outer != "xhat"]  # fmt: skip
        found.append(Second(outer="rstd·xhat"))
        return found + ([Second(of, outer="γ·xhat") for of in self.factors] if len(self.factors) > 1 else [])

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
        for scale in SCALES:
            for of in self.factors:
                for over in self.over:
                    shared = (*(("of",) if of != "dxhat" else ()), *(("over",) if over != "row" else ()))
                    cost = len(shared) + (scale != "rstd")
                    if cost <= depth:
                        yield Candidate(scale, First(of), Mean(of, over), Second(of, over), cost, shared)

    def _with_one_changed(self, base: Candidate) -> Iterator[Candidate]:
        cost, scale, shared = base.cost + 1, base.scale, base.shared
        yield from (
            Candidate(scale, first, base.mean, base.second, cost, shared)
            for first in self.firsts
            if first != base.first
        )
        yield from (
            Candidate(scale, base.first, mean, base.second, cost, shared) for mean in self.means if mean != base.mean
        )
        yield from (
            Candidate(scale, base.first, base.mean, second, cost, shared)
            for second in self.seconds
            if second != base.second
        )

    def _with_two_changed(self) -> Iterator[Candidate]:
        first, mean, second = First(), Mean(), Second()
        firsts = [one for one in self.firsts if one != first]
        means = [one for one in self.means if one != mean]
        seconds = [one for one in self.seconds if one != second]
        for other in means:
            yield from (Candidate("rstd", one, other, second, 2) for one in firsts)
            yield from (Candidate("rstd", first, other, one, 2) for one in seconds)
        for other_second in seconds:
            yield from (Candidate("rstd", one, mean, other_second, 2) for one in firsts)
