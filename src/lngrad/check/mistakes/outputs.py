"""An output that is to be explained: as it came, as it should be, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lngrad.dtypes import ACCUMULATORS, SMALLEST, UNIT_ROUNDOFF
from lngrad.testing import TOLERANCES, error_share
from lngrad.typing import Array

__all__ = ["Output", "share_of"]


@dataclass(frozen=True)
class Output:
    """One wanted output: as it came, in its own dtype, and what it should be, in float64."""

    name: str
    result: Array
    true: Array
    scale: Array

    @cached_property
    def share(self) -> Array:
        """How much of its tolerance each element's error uses."""
        return share_of(self.result, self.true, self.scale)

    @property
    def bound(self) -> Array:
        """The error that a right result may have, for results of the size of this one."""
        dtype = self.result.dtype.name
        wide = self.result.astype(np.float64)
        accumulator = ACCUMULATORS[dtype]
        sums = TOLERANCES[accumulator] * UNIT_ROUNDOFF[accumulator] * (self.scale + np.abs(wide - self.true))
        return np.asarray(UNIT_ROUNDOFF[dtype] * np.abs(wide) + sums + SMALLEST[dtype])


def share_of(result: Array, expected: Array, scale: Array) -> Array:
    return np.asarray(error_share(result, expected, scale, ACCUMULATORS[result.dtype.name]))
