"""What a mistake is: how to make it, and what to say about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.mistakes import wrong_inputs as inputs_
from lngrad.check.mistakes import wrong_results as results_
from lngrad.check.mistakes.terms import terms_of
from lngrad.core import reference
from lngrad.core.problem import Grads
from lngrad.testing import Inputs


def true_grads(inputs: Inputs) -> Grads:
    """The reference, quiet about the infinities that a case forces."""
    with np.errstate(all="ignore"):
        return reference.layer_norm_backward(
            inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized=inputs.normalized
        )


@dataclass(frozen=True)
class Mistake:
    """What to say about a mistake, and how to make it: with other inputs, or by another computation.

    Attributes:
        sentence: What the person did, and where to look.
        change: The inputs that it changes, or None.
        make: The results that it changes, or None.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so only bits show it.
        sums_only: It leaves dx alone, and is dear to make: not looked at where dgamma and dbeta are right.
    """

    sentence: str
    change: inputs_.Change | None = None
    make: results_.Make | None = None
    by_size: bool = False
    rounding: bool = False
    sums_only: bool = False

    def changed(self, case: CheckCase, inputs: Inputs) -> Inputs | None:
        """The inputs with the mistake; None where it makes no difference or is none of the inputs."""
        if self.change is None or not inputs.x.size:
            return None
        with np.errstate(all="ignore"):
            changes = self.change(case, inputs)
        return None if changes is None else replace(inputs, **changes)

    def grads(self, case: CheckCase, inputs: Inputs) -> Grads | None:
        """The gradients with the mistake, in float64; None where it makes no difference."""
        if not inputs.x.size:
            return None
        if self.make is None:
            changed = self.changed(case, inputs)
            return None if changed is None else true_grads(changed)
        true = true_grads(inputs)
        with np.errstate(all="ignore"):
            made = self.make(case, inputs, terms_of(inputs), true)
        if made is None:
            return None
        return Grads(*(made.get(name, old).reshape(old.shape) for name, old in zip(Grads._fields, true, strict=True)))


def of_inputs(change: inputs_.Change, sentence: str, *, by_size: bool = False) -> Mistake:
    return Mistake(sentence, change=change, by_size=by_size)


def of_results(make: results_.Make, sentence: str, *, by_size: bool = False, rounding: bool = False) -> Mistake:
    return Mistake(sentence, make=make, by_size=by_size, rounding=rounding)


def of_sums(make: results_.Make, sentence: str) -> Mistake:
    return Mistake(sentence, make=make, by_size=True, sums_only=True)
