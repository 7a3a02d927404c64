"""The choices that a wrong dx is made of: factors, what is averaged and over what, and which term they stand in.

A dx is scale·(c0·D − c1·mean(D) − c2·X·mean(D·Y)). The right one has scale rstd, D = dxhat, X = Y = xhat, means over the row
and coefficients 1. Every choice has its formula as text, for the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lngrad.check.mistakes.terms import Terms
from lngrad.typing import Array

SCALES = {"rstd": 1.0, "": 0.0, "rstd²": 2.0, "rstd³": 3.0, "√variance": -1.0}  # powers of rstd
BLOCKS = (2, 4, 8, 16, 32)
POWERS = {"rstd·": 1.0, "1/rstd·": -1.0}  # that one term alone has too much; (x−mean) is xhat/rstd


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
        self.inner = {"xhat": terms.xhat, "(x−mean)": terms.x - terms.mean, "x": terms.x}

    @cached_property
    def over(self) -> tuple[str, ...]:
        """What a mean can go over here."""
        found = ["row"]
        if self.terms.M > 1:
            found += ["rows", "all", "previous row", "next row"]
            found += [f"block of {block} rows" for block in BLOCKS if block <= self.terms.M]
        if len(self.terms.normalized) > 1 and self.terms.normalized[-1] > 1:
            found.append("last axis")
        if len(self.terms.lead) > 1 and 1 < self.terms.lead[0] < self.terms.M:
            found.append("sample")
        return tuple(found)

    def _mean(self, of: str, inner: str, over: str) -> Array:
        """A mean, of a shape that broadcasts to (rows, N)."""
        if (of, inner) not in self._products:
            product = self.terms.dy * self.factors[of]
            self._products[of, inner] = product * self.inner[inner] if inner else product
        product = self._products[of, inner]
        M, N = product.shape
        if over == "rows":
            return np.asarray(product.mean(0, keepdims=True))
        if over == "all":
            return np.asarray(product.mean(keepdims=True))
        if over == "last axis":
            last = self.terms.normalized[-1]
            return np.repeat(product.reshape(M, N // last, last).mean(2), last, axis=1)
        row: Array = np.asarray(product.mean(1, keepdims=True))
        if over == "row":
            return row
        if over == "previous row":
            return np.roll(row, 1, axis=0)
        if over == "next row":
            return np.roll(row, -1, axis=0)
        if over == "sample":
            samples = self.terms.lead[0]
            return np.repeat(row.reshape(samples, -1).mean(1), M // samples).reshape(M, 1)
        block = int(over.split()[2])
        sums = np.add.reduceat(row, np.arange(0, M, block), axis=0)
        return np.repeat(sums, block, axis=0)[:M]

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
        for first in self.firsts:
            if first != base.first:
                yield Candidate(scale, first, base.mean, base.second, cost, shared)
        for mean in self.means:
            if mean != base.mean:
                yield Candidate(scale, base.first, mean, base.second, cost, shared)
        for second in self.seconds:
            if second != base.second:
                yield Candidate(scale, base.first, base.mean, second, cost, shared)

    def _with_two_changed(self) -> Iterator[Candidate]:
        first, mean, second = First(), Mean(), Second()
        for other in self.means:
            yield from (
                Candidate("rstd", one, other, second, 2) for one in self.firsts if one != first and other != mean
            )
            yield from (
                Candidate("rstd", first, other, one, 2) for one in self.seconds if one != second and other != mean
            )
        for other_second in self.seconds:
            if other_second != second:
                yield from (Candidate("rstd", one, mean, other_second, 2) for one in self.firsts if one != first)
