"""What a row of the table of known mistakes is, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes.changes import Change, ExactCase
from lngrad.core.problem import Grads
from lngrad.testing import Inputs


@dataclass(frozen=True)
class Mistake:
    """A row of the table: what to say about a mistake, and how to make it.

    Attributes:
        sentence: What the person did, and where to look.
        inputs: The change of the inputs, or None.
        results: The change of the gradients, or None.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so only bits show it.
        unwritten: NaN in its results stands for what memory held.
        sums_only: It leaves dx alone, and takes long to make: not looked at where dgamma and dbeta are right.
        dx_only: The same of dgamma and dbeta.
    """

    sentence: str
    inputs: Change | None = None
    results: Change | None = None
    by_size: bool = False
    rounding: bool = False
    sums_only: bool = False
    dx_only: bool = False
    unwritten: bool = False

    def changed(self, call: ExactCase) -> Inputs | None:
        """The inputs with the mistake; None where it makes no difference or is none of the inputs."""
        if self.inputs is None or not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            changed = self.inputs(call)
        return None if changed is None else replace(call.inputs, **changed)

    def made(self, call: ExactCase) -> Grads | None:
        """The gradients with the mistake, in float64; None where it makes no difference."""
        if self.results is None:
            inputs = self.changed(call)
            return None if inputs is None else self._compared(true_grads(inputs), call.true)
        if not call.inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            made = self.results(call)
        if made is None:
            return None
        pairs = zip(Grads._fields, call.true, strict=True)
        return self._compared(Grads(*(made.get(name, old).reshape(old.shape) for name, old in pairs)), call.true)

    def _compared(self, made: Grads, true: Grads) -> Grads:
        """An infinity for a NaN that is none of memory's: it must be in the result to explain it."""
        if self.unwritten:
            return made
        with np.errstate(all="ignore"):
            return Grads(*(
                np.where(np.isnan(one) & np.isfinite(right), np.inf, one) if np.isnan(np.sum(one)) else one
                for one, right in zip(made, true, strict=True)
            ))  # fmt: skip
