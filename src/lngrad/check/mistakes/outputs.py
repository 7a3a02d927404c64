"""An output that is to be explained: as it came, as it should be, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lngrad.core.dtypes import ACCUMULATORS, SMALLEST, UNIT_ROUNDOFF
from lngrad.testing import TOLERANCES, error_share
from lngrad.typing import Array

EXPLAINED = 0.995  # of the elements
SLACK = 4.0  # tolerances: a mistake made in float32 is rounded at other places than ours in float64
ROUNDINGS = 4.0  # of each term to 16 bits, or thereabouts, on its way to a result
LEFT = 0.5  # of the error may be left by what explains it
CAP = 0.1  # of the error may be taken for roundings there


@dataclass(frozen=True)
class Output:
    """One wanted output: as it came, in its own dtype, and what it should be, in float64.

    origin: The same result beside what it should be, where this one is beside what other inputs give. Inputs that are wildly
        wrong have wide bounds, and would explain everything; so what is left of the error is compared with it.
    """

    name: str
    result: Array
    true: Array
    scale: Array
    origin: Output | None = None

    def with_inputs(self, true: Array, scale: Array) -> Output:
        """The same result beside what it would be with other inputs."""
        return replace(self, true=true, scale=scale, origin=self)

    @cached_property
    def error(self) -> Array:
        """Of the result, in float64."""
        return np.asarray(np.abs(self.result.astype(np.float64) - self.true))

    @property
    def is_explained(self) -> bool:
        """Whether nearly all elements are within some tolerances; with other inputs, far nearer than without."""
        good = self.share <= SLACK
        if self.origin is not None:
            good &= (self.error <= SLACK * self.bound) | ~np.isfinite(self.true)
            if self.origin.share.max() > 1:
                before, after = (_size(one.error / self.origin.bound) for one in (self.origin, self))
                if after > LEFT * before:
                    return False
        return bool(np.mean(good) >= EXPLAINED)

    @property
    def most_left(self) -> float:
        """How much of the error, in bounds and as a root mean square, an explanation may leave."""
        return LEFT * _size((self.origin or self).error / self.bound)

    @cached_property
    def share(self) -> Array:
        """How much of its tolerance each element's error uses."""
        return share_of(self.result, self.true, self.scale)

    @cached_property
    def bound(self) -> Array:
        """The error that a right result may have, for results of the size of this one."""
        dtype = self.result.dtype.name
        wide = self.result.astype(np.float64)
        accumulator = ACCUMULATORS[dtype]
        sums = TOLERANCES[accumulator] * UNIT_ROUNDOFF[accumulator] * (self.scale + np.abs(wide - self.true))
        bound = np.asarray(UNIT_ROUNDOFF[dtype] * np.abs(wide) + sums + SMALLEST[dtype])
        if self.origin is None:
            return bound
        return np.minimum(bound, self.origin.bound + CAP / SLACK * _size(self.origin.error))

    def describe_roundings(self) -> str | None:
        """That no error is larger than roundings of the terms to 16 bits; None if one is."""
        result = self.result.dtype.name
        for dtype in ("float16", "bfloat16"):
            most = ROUNDINGS * UNIT_ROUNDOFF[dtype] * self.scale + UNIT_ROUNDOFF[result] * np.abs(self.true)
            if (self.error <= most + SMALLEST[dtype]).all():
                return f"no error is larger than a few roundings of its terms to {dtype}: is it computed, or kept, in 16 bits?"
        return None


def _size(errors: Array) -> float:
    """The root mean square of those that are finite."""
    finite = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def share_of(result: Array, expected: Array, scale: Array) -> Array:
    return np.asarray(error_share(result, expected, scale, ACCUMULATORS[result.dtype.name]))
