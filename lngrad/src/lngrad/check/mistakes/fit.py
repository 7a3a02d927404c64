"""A wrong output beside what it should be, and what may explain it: the objects that every explainer takes and returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lngrad.check.mistakes.terms import Terms, wide
from lngrad.check.result import Formula, Weights
from lngrad.core.problem import Grads
from lngrad.support.bounded_cache import cached_property
from lngrad.support.dtypes import ACCUMULATORS, SMALLEST, UNIT_ROUNDOFF
from lngrad.testing import TOLERANCES, error_share
from lngrad.typing import Array

SUMS = {"dgamma": "Σ_rows dy·xhat", "dbeta": "Σ_rows dy"}
OF_FORWARD = {
    "y": "(x − mean)·rstd·gamma + beta", "mean": "Σx/N", "rstd": "1/√(variance + eps)", "total": "alpha·x + residual",
}  # fmt: skip
MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)  # that kernels fill a row up to

SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
WRONG_ONES = 0.9  # of the wrong elements, where these are few
SURELY = 0.8  # of some of the wrong elements: where less is explained, less than WRONG_ONES of all are
MANY = 1 << 13  # wrong elements that are looked at before all, at most
ROUNDINGS = 4.0  # of each term to 16 bits, or thereabouts, on its way to a result
MAX_LEFT = 0.5  # of the error may be left by what explains it
MAX_SQUARES_LEFT = 0.25  # of the error's square, where numbers were fitted to the result
MIN_ELEMENTS = 8  # of a row or column, so that one or two free numbers for it explain nothing by chance
CAP = 0.1  # of the error may be taken for roundings with other inputs
TINY = 1e-300


def nearly_all(holds: Array, axis: int | None = None) -> Any:
    """Whether as many elements are right as explain a result: of all, or of each line."""
    return holds.mean(axis) >= EXPLAINED


@dataclass(frozen=True)
class Difference:
    """One way in which a result differs from the right one: a name to count by, and a sentence to act on."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """What explains one output: a formula, unless it is the inputs that differ, and weights of sums that lack terms."""

    formula: Formula | None
    differences: tuple[Difference, ...]
    weights: tuple[Weights, ...] = ()


@dataclass(frozen=True)
class WrongOutput:
    """One wanted output: as it came, in its own dtype, and what it should be, in float64.

    origin: The same result beside what it should be, where this one is beside what other inputs give. Inputs that are wildly
        wrong have wide bounds, and would explain everything; so what is left of the error is compared with it.
    """

    name: str
    result: Array
    true: Array
    scale: Array
    origin: WrongOutput | None = None
    _made: dict[int, tuple[Array, bool]] = field(default_factory=dict, repr=False, compare=False)  # by identity

    @cached_property
    def error(self) -> Array:
        """Of the result, in float64."""
        return np.asarray(np.abs(wide(self.result) - self.true))

    @cached_property
    def share(self) -> Array:
        """How much of its tolerance each element's error uses."""
        return self._shares(self.true, self.scale)

    def _shares(self, expected: Array, scale: Array) -> Array:
        return np.asarray(error_share(self.result, expected, scale, ACCUMULATORS[self.result.dtype.name]))

    def shares_with(self, expected: Array) -> tuple[Array, Array]:
        """How much of the tolerances each element uses beside a mistake's, and beside the right one, both with one scale.

        Where a mistake writes nothing, which NaN stands for, there may be anything; if all of it is right, it was written.
        """
        unwritten = np.isnan(expected) & np.isfinite(self.true)
        scale = self.scale + np.abs(np.where(unwritten, self.true, expected) - self.true)
        without = self._shares(self.true, scale)
        if unwritten.any() and (self.share[unwritten] <= 1).all():
            return np.full_like(without, np.inf), without
        shares = np.where(unwritten, 0.0, self._shares(expected, scale))
        blown = np.isinf(expected) & np.isfinite(self.true)
        return np.where(blown & ~np.isfinite(wide(self.result)), 0.0, shares) if blown.any() else shares, without

    @cached_property
    def _some(self) -> tuple[Array, WrongOutput]:
        """Some of the wrong elements, of which most mistakes make few."""
        rows = np.flatnonzero(self.share > SLACK)
        rows = rows[:: max(1, rows.size // MANY)]
        return rows, replace(
            self, **{name: getattr(self, name).reshape(-1)[rows] for name in ("result", "true", "scale")}
        )

    def is_made(self, expected: Array) -> bool:
        """Whether it is what a mistake makes: right where that leaves it alone, and wrong where it does not. Found once."""
        if id(expected) not in self._made:
            rows, few = self._some
            if rows.size and np.mean(few.shares_with(expected.reshape(-1)[rows])[0] <= SLACK) < SURELY:
                return False
            with_mistake, without = self.shares_with(expected)
            explained = with_mistake <= SLACK
            is_made = bool(nearly_all(explained) and not (~explained & (without <= 1)).any())
            if is_made and (wrong := self.share > SLACK).any():
                is_made = bool(explained[wrong].mean() >= WRONG_ONES)
            self._made[id(expected)] = expected, is_made
        return self._made[id(expected)][1]

    @cached_property
    def is_wrong(self) -> bool:
        return bool(self.share.max() > 1)

    @property
    def is_explained(self) -> bool:
        """Whether nearly all elements are within some tolerances; with other inputs, far nearer than without."""
        good = self.share <= SLACK
        if self.origin is not None:
            good &= (self.error <= SLACK * self.bound) | ~np.isfinite(self.true)
            if self.origin.is_wrong:
                before, after = (_size(array.error / self.origin.bound) for array in (self.origin, self))
                if after > MAX_LEFT * before:
                    return False
        return bool(nearly_all(good))

    @property
    def max_left(self) -> float:
        """How much of the error, in bounds and as a root mean square, an explanation may leave."""
        return MAX_LEFT * _size((self.origin or self).error / self.bound)

    @cached_property
    def bound(self) -> Array:
        """The error that a right result may have, for results of the size of this one."""
        dtype = self.result.dtype.name
        accumulator = ACCUMULATORS[dtype]
        sums = TOLERANCES[accumulator] * UNIT_ROUNDOFF[accumulator] * (self.scale + self.error)
        bound = np.asarray(UNIT_ROUNDOFF[dtype] * np.abs(wide(self.result)) + sums + SMALLEST[dtype])
        if self.origin is None:
            return bound
        return np.minimum(bound, self.origin.bound + CAP / SLACK * _size(self.origin.error))

    def rounded_in(self) -> str | None:
        """The dtype, narrower than the result's, whose roundings of the terms explain every error; None if there is none."""
        result = self.result.dtype.name
        for dtype in ("float32", "float16", "bfloat16")[result != "float64" :]:
            most = ROUNDINGS * UNIT_ROUNDOFF[dtype] * self.scale + UNIT_ROUNDOFF[result] * np.abs(self.true)
            if SMALLEST[dtype] < most.max() and (self.error <= most + SMALLEST[dtype]).all():
                return dtype
        return None


def _size(errors: Array) -> float:
    """The root mean square of those that are finite."""
    finite = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


@dataclass(frozen=True)
class Fit:
    """A wrong output in float64, with what says whether something explains it.

    Attributes:
        terms: Of the inputs.
        name: Of the output.
        result: As it came: (rows, N), or (N,) of dgamma and dbeta.
        bound: The error that a right one may have, of result's shape.
        rights: The right gradients by name, of the same shapes.
        depth: In how many choices the formula of dx may differ from the right one, besides coefficients.
        max_left: How much of the error, in bounds and as a root mean square, a formula of dx may leave.
    """

    terms: Terms
    name: str
    result: Array
    bound: Array
    rights: dict[str, Array]
    depth: int = 2
    max_left: float = math.inf

    @staticmethod
    def of(terms: Terms, output: WrongOutput, truth: Grads, depth: int) -> Fit:
        shapes = {"dx": terms.dy.shape, "dgamma": (terms.N,), "dbeta": (terms.N,)}
        rights = {name: getattr(truth, name).reshape(shape) for name, shape in shapes.items()}
        result, bound = (array.reshape(shapes[output.name]) for array in (wide(output.result), output.bound))
        return Fit(terms, output.name, result, bound, rights, depth, output.max_left)

    @property
    def true(self) -> Array:
        return self.rights[self.name]

    @property
    def right(self) -> str:
        """The right formula as text."""
        return self.terms.dx_text() if self.name == "dx" else (SUMS | OF_FORWARD)[self.name]

    @cached_property
    def of_norm(self) -> Array:
        """The result of dx without what is added to it."""
        return self.result - self.terms.dtotal

    @cached_property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.result).all())

    def is_near(self, array: Array, more: Array | float = 0.0) -> Array:
        """Which elements are within some bounds, and `more`, of what a mistake would give."""
        return np.asarray(np.abs(array - self.result) <= SLACK * (self.bound + more))

    def explains(self, array: Array, more: Array | float = 0.0) -> bool:
        """Whether nearly all elements are what a mistake would give."""
        near, wrong = self.is_near(array, more), self.is_wrong
        return bool(nearly_all(near) and (wrong is None or np.mean(near[wrong]) >= WRONG_ONES))

    @cached_property
    def is_wrong(self) -> Array | None:
        """Which elements are; None where nothing is, or what is right is not known."""
        wrong = ~self.is_near(self.true) if self.name in self.rights else np.zeros(1, bool)
        return wrong if wrong.any() else None

    @cached_property
    def weight(self) -> Array:
        """Of each element where errors are compared: one over its bound."""
        return np.asarray(1 / np.maximum(self.bound, TINY))

    def squares_left(self, array: Array) -> float:
        """The sum of the squares of what is left, in bounds."""
        return float(np.square((array - self.result) * self.weight).sum())

    def is_left_little(self, array: Array, right: Array) -> bool:
        """Whether numbers that were fitted to the result take far more of the error than chance would."""
        return self.squares_left(array) <= MAX_SQUARES_LEFT * self.squares_left(right)

    def formula(self, text: str) -> Formula:
        """From its text, in which what differs from the right one stands between two asterisks."""
        parts = ((part, number % 2 == 1) for number, part in enumerate(text.split("**")) if part)
        return Formula(self.name, tuple(parts), self.right)

    def explanation(self, name: str, sentence: str, formula: str, *weights: Weights) -> Explanation:
        return Explanation(self.formula(formula), (Difference(name, sentence),), weights)


def padded_sizes(N: int) -> dict[int, str]:
    """The sizes that a row of N elements is filled up to, and how each comes about."""
    found: dict[int, str] = {}
    for multiple in MULTIPLES:
        found.setdefault(-(-N // multiple) * multiple, f"a multiple of {multiple}")
    found.setdefault(1 << (N - 1).bit_length(), "a power of two")
    found.pop(N, None)
    return found


def number_text(value: float, N: int, M: int, of_mean: bool = False) -> str:
    """A coefficient as people write it: 2, 1/2, 1/N, N/(N−1), of a row mean N over a padded N, or a few digits."""
    padded = padded_sizes(N) if of_mean else {}
    for text, number in (("N", N), ("1/N", 1 / N), ("N/(N−1)", N / (N - 1) if N > 1 else 0.0), ("(N−1)/N", 1 - 1 / N),
                         ("M", M), ("1/M", 1 / max(M, 1)),
                         *((("N/M", N / max(M, 1)),) if of_mean else ()), *((f"N/{P}", N / P) for P in padded)):  # fmt: skip
        if number not in (0.0, 1.0, 2.0, 0.5) and abs(abs(value) - number) < 1e-9 * number:
            return text if value > 0 else f"−{text}"
    halves = {0.5: "1/2", 1.5: "3/2", 0.25: "1/4"}
    digits = 3 if abs(value) < 100 else 4  # of what least squares gives of 16-bit results
    text = halves.get(abs(value), f"{abs(value):.{digits}g}")
    return text if value >= 0 else f"−{text}"
