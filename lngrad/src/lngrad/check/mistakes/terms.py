"""The float64 terms that gradients are made of, and the choices for them that a wrong dx may have made.

The choices are factors, what is averaged and over what, and which term they stand in. A dx is
scale·(c0·D − c1·mean(D) − c2·X·mean(D·Y)). The right one has scale rstd, D = dxhat, X = Y = xhat, means over the row and
coefficients 1. Every choice has its formula as text, for the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from lngrad.core.problem import LAYER_NORM, Normalization
from lngrad.support.bounded_cache import cached_property
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Inputs
from lngrad.testing import terms_of as gradient_terms
from lngrad.typing import Array, Shape


@dataclass(frozen=True)
class Terms:
    """The float64 terms that every formula of a backward is made of.

    Attributes:
        dy, x, xhat, dxhat: (rows, N); dxhat is dy·gamma, x is a total where there is a residual.
        gamma: (1, N), with its offset; ones where the case has none.
        mean, rstd: (rows, 1).
        dtotal: (rows, N), what is added to dx; 0 where nothing is.
        normalization: Without a centre, mean is 0, and so is the first of the two row means.
        lead, normalized: The shape of x before it was flattened.
    """

    dy: Array
    x: Array
    xhat: Array
    dxhat: Array
    gamma: Array
    mean: Array
    rstd: Array
    lead: Shape
    normalized: Shape
    dtotal: Array | float = 0.0
    normalization: Normalization = LAYER_NORM

    @property
    def M(self) -> int:
        return len(self.dy)

    @property
    def N(self) -> int:
        return int(self.dy.shape[1])

    @property
    def dxhat_text(self) -> str:
        return "dy·(offset + gamma)" if self.normalization.offset else "dy·gamma"

    def summed(self, name: str) -> Array:
        """What dgamma or dbeta adds up over the rows."""
        return self.dy * self.xhat if name == "dgamma" else self.dy

    @cached_property
    def averaged(self) -> tuple[Array, Array]:
        """What the two row means are of: dxhat, 0 without a centre, and dxhat·xhat."""
        return self.dxhat if self.normalization.centred else np.zeros_like(self.dxhat), self.dxhat * self.xhat

    @cached_property
    def means(self) -> tuple[Array, Array]:
        """The row means of dxhat and of dxhat·xhat, (rows, 1)."""
        first, second = map(row_mean, self.averaged)
        return first, second

    def dx(self, first: Array | None = None, second: Array | None = None) -> Array:
        """dx with other row means, of a shape that broadcasts to (rows, N)."""
        first, second = (
            right if mean is None else mean for mean, right in zip((first, second), self.means, strict=True)
        )
        return np.asarray(self.rstd * (self.dxhat - first - self.xhat * second) + self.dtotal)

    def with_xhat(self, xhat: Array, rstd: Array | None = None) -> dict[str, Array]:
        """dx and dgamma with another xhat, and another rstd before the bracket."""
        dx = self.of_norm(self.dxhat, xhat, self.rstd if rstd is None else rstd) + self.dtotal
        return {"dx": dx, "dgamma": (self.dy * xhat).sum(0)}

    def of_norm(self, dxhat: Array, xhat: Array, rstd: Array) -> Array:
        """The right formula of other terms, each (rows, N) or (rows, 1), before dtotal is added."""
        first = row_mean(dxhat) if self.normalization.centred else 0.0
        return np.asarray(rstd * (dxhat - first - xhat * row_mean(dxhat * xhat)))

    def dx_text(self, first: str = "mean_dxhat", second: str = "mean_dxhat_xhat") -> str:
        """The right formula of dx, with these names for the two row means."""
        return self.with_dtotal(f"rstd·(dxhat − {first} − " if self.normalization.centred else "rstd·(dxhat − ",
                                f"xhat·{second})")  # fmt: skip

    def with_dtotal(self, *parts: str) -> str:
        """A formula's text, with what is added to dx."""
        return "".join(parts) + (" + dtotal" if isinstance(self.dtotal, np.ndarray) else "")


def terms_of(inputs: Inputs) -> Terms:
    N = max(1, math.prod(inputs.normalized_shape))
    lead = inputs.x.shape[: inputs.x.ndim - inputs.normalized]
    M = math.prod(lead)
    dy, xhat, dxhat, rstd = gradient_terms(inputs)
    gamma = inputs.normalization.scale(np.ones(N) if inputs.gamma is None else wide(inputs.gamma))
    dy, x, xhat, dxhat = (array.reshape(M, N) for array in (dy, wide(inputs.total), xhat, dxhat))
    mean, rstd = (array.reshape(M, 1) for array in (wide(inputs.mean), rstd))
    return Terms(
        dy, x, xhat, dxhat, gamma.reshape(1, N), mean, rstd, tuple(lead), inputs.normalized_shape,
        0.0 if inputs.dtotal is None else wide(inputs.dtotal).reshape(M, N), inputs.normalization,
    )  # fmt: skip


def wide(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)


def narrowed(array: Array, dtype: str) -> Array:
    """Float64 numbers rounded to float32, and then to 16 bits."""
    return array.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)


def without_nan(array: Array, true: Array) -> Array:
    """An infinity for a NaN that stands for no memory's contents: it must be in a result to explain it."""
    with np.errstate(all="ignore"):
        return np.where(np.isnan(array) & np.isfinite(true), np.inf, array) if np.isnan(np.sum(array)) else array


def row_mean(array: Array) -> Array:
    return np.asarray(array.mean(1, keepdims=True))


def chunk_means(array: Array, chunk: int) -> Array:
    """The means of each row's chunks of so many columns, (rows, chunks)."""
    starts = np.arange(0, array.shape[1], chunk)
    return np.asarray(np.add.reduceat(array, starts, axis=1) / np.diff(np.append(starts, array.shape[1])))


def row_sum(array: Array) -> Array:
    return np.asarray(array.sum(1, keepdims=True))


SCALES = {"rstd": 1.0, "": 0.0, "rstd²": 2.0, "rstd³": 3.0, "√variance": -1.0}  # powers of rstd


@dataclass(frozen=True)
class Over:
    """What a mean goes over: in words; whether a case has it; and the mean of a product (rows, N), which broadcasts to that."""

    text: str
    applies: Callable[[Terms], bool]
    mean: Callable[[Terms, Array], Array]


def _of_last_axis(t: Terms, values: Array) -> Array:
    last = t.normalized[-1]
    return np.repeat(values.reshape(t.M, t.N // last, last).mean(2), last, axis=1)


def _of_samples(t: Terms, values: Array) -> Array:
    return np.repeat(row_mean(values).reshape(t.lead[0], -1).mean(1), t.M // t.lead[0]).reshape(t.M, 1)


def _block(size: int) -> Over:
    def sums(t: Terms, values: Array) -> Array:
        return np.repeat(np.add.reduceat(row_mean(values), np.arange(0, t.M, size), axis=0), size, axis=0)[: t.M]

    return Over(f"over a block of {size} rows together, a sum without its axis", lambda t: size <= t.M, sums)


OVER = {
    "row": Over("over one row", lambda t: True, lambda t, values: row_mean(values)),
    "rows": Over("over axis 0, the rows", lambda t: t.M > 1, lambda t, values: values.mean(0, keepdims=True)),
    "all": Over("over the whole tensor", lambda t: t.M > 1, lambda t, values: values.mean(keepdims=True)),
    "previous row": Over("over the row before", lambda t: t.M > 1, lambda t, values: np.roll(row_mean(values), 1, 0)),
    "next row": Over("over the row after", lambda t: t.M > 1, lambda t, values: np.roll(row_mean(values), -1, 0)),
    **{f"block of {size} rows": _block(size) for size in (2, 4, 8, 16, 32)},
    "last axis": Over("over the last axis only", lambda t: len(t.normalized) > 1 and t.normalized[-1] > 1, _of_last_axis),
    "sample": Over("over all rows of a sample, as if the first dimension counted the rows",
                   lambda t: len(t.lead) > 1 and 1 < t.lead[0] < t.M, _of_samples),
}  # fmt: skip


class Term(NamedTuple):
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


class Candidate(NamedTuple):
    """One formula without its coefficients.

    Attributes:
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
        factors = {"dxhat": gamma, "dy": np.ones_like(gamma), f"dy·{of_gamma}²": gamma**2}
        factors |= {f"dy·(1+{of_gamma})": 1 + gamma, "dy·γ" if terms.normalization.offset else "dy·(γ−1)": gamma - 1}
        # Without a gamma, or with ones, all but 2·dy and 0 are the same.
        self.factors = factors if (gamma != 1).any() else {"dxhat": gamma}
        self.over = [name for name, over in OVER.items() if over.applies(terms)]
        centred = {"(x−mean)": terms.x - terms.mean} if terms.normalization.centred else {}
        self.inner = {"xhat": xhat, **centred, "x": terms.x}
        self.outer = {
            "": np.ones((1, 1)), "rstd·": rstd, "1/rstd·": 1 / rstd, "γ·": gamma,
            **{f"{name}·": factor for name, factor in self.inner.items()}, "rstd·xhat·": rstd * xhat, "γ·xhat·": gamma * xhat,
        }  # fmt: skip
        powers = ("rstd·", "1/rstd·")
        once_more = self.factors if len(self.factors) > 1 else ()
        pairs = [(of, over) for of in self.factors for over in self.over]
        self.options: tuple[Terms3, Terms3, Terms3] = (
            (*map(Term, self.factors), *(Term(outer=power) for power in powers)),
            (*(Term(of, over) for of, over in pairs), *(Term(over="row", outer=power) for power in powers),
             *(Term(of, "row", outer="γ·") for of in once_more)),
            (*(Term(of, over, "xhat", "xhat·") for of, over in pairs),
             *(Term("dxhat", "row", inner, f"{outer}·") for inner in self.inner for outer in self.inner
               if inner != "xhat" or outer != "xhat"),
             Term("dxhat", "row", "xhat", "rstd·xhat·"), *(Term(of, "row", "xhat", "γ·xhat·") for of in once_more)),
        )  # fmt: skip
        self.names = tuple(self.factors), tuple(self.over), self.options

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


@lru_cache(maxsize=16)
def candidates(
    factors: tuple[str, ...], over: tuple[str, ...], options: tuple[Terms3, ...], depth: int
) -> list[tuple[str, list[Candidate], Array, Array]]:
    """By scale the formulas with at most `depth` other choices, the simplest first, their terms' numbers, and their costs."""
    found = []
    for scale, of, means in product(SCALES, factors, over):
        shared = (*["of"] * (of != "dxhat"), *["over"] * (means != "row"))
        found.append(Candidate(scale, made_of(of, means), len(shared) + (scale != "rstd"), shared))
    found = [found_formula for found_formula in found if found_formula.cost <= depth]
    found += [
        Candidate(base.scale, _with(base.terms, place, option), base.cost + 1, base.shared)
        for base in found if base.cost < depth
        for place, right in enumerate(base.terms) for option in options[place] if option != right
    ]  # fmt: skip
    if depth >= 2:
        others = [[term for term in terms if term != right] for terms, right in zip(options, RIGHT_TERMS, strict=True)]
        found += [
            Candidate("rstd", _with(_with(RIGHT_TERMS, place, changed), other, term), 2)
            for place, second_places in ((1, (0, 2)), (2, (0,)))
            for changed, other in product(others[place], second_places) for term in others[other]
        ]  # fmt: skip
    number = {term: n for n, term in enumerate(chain(*options))}
    groups: dict[str, list[Candidate]] = {}
    for candidate in sorted(found, key=lambda candidate: candidate.cost):
        groups.setdefault(candidate.scale, []).append(candidate)
    return [
        (
            scale,
            group,
            np.array([[*map(number.get, found_formula.terms)] for found_formula in group]),
            np.array([found_formula.cost for found_formula in group]),
        )
        for scale, group in groups.items()
    ]


def _with(terms: Terms3, place: int, term: Term) -> Terms3:
    return (*terms[:place], term, *terms[place + 1 :])
