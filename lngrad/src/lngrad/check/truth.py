"""What the results of a case should be, by name, and the sums of absolute values that their tolerances are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.inputs import true_grads, with_own_statistics
from lngrad.core import reference
from lngrad.support.dtypes import UNIT_ROUNDOFF
from lngrad.testing import Inputs, forward_scales, gradient_scales

CANCELLED = 2.0**-20  # of the largest element: what float32 loses in a total


def truth_of(case: CheckCase, exact: Inputs, total: Any = None) -> dict[str, Any]:
    """The results that are wanted, in float64: gradients from the statistics as they are, a forward from its own.

    `total` is the one that came: where it is right, the rest of the forward follows from it as it is.
    """
    truth = true_grads(exact)._asdict() if case.has_gradients else {}
    return truth | (true_forward(case, exact, total) if has_forward(case) else {})


def scales_of(case: CheckCase, exact: Inputs, *, rounded_mean: bool = False) -> dict[str, Any]:
    """The sums of the absolute values of the terms of each wanted result; `rounded_mean` as of gradient_scales."""
    scales = gradient_scales(exact, rounded_mean=rounded_mean)._asdict() if case.has_gradients else {}
    if has_forward(case):
        scales |= forward_scales(with_own_statistics(exact, case.eps) if exact.x.size else exact)
    return scales


def has_forward(case: CheckCase) -> bool:
    """Whether a result of the forward is wanted."""
    return not set(case.operator.outputs).issuperset(case.wanted or ())


def true_forward(case: CheckCase, exact: Inputs, total: Any = None) -> dict[str, Any]:
    """y, mean and rstd in float64, of a total as it was rounded; and the total before."""
    facts: dict[str, Any] = {"normalized": exact.normalized, "normalization": exact.normalization}
    x = exact.total
    with np.errstate(all="ignore"):
        if total is not None and total.shape == x.shape and total.dtype == x.dtype:
            right = x.astype(np.float64)
            bound = 2 * UNIT_ROUNDOFF[x.dtype.name] * np.abs(right) + CANCELLED * np.abs(right).max(initial=0)
            x = total if (np.abs(total.astype(np.float64) - right) <= bound).all() else x
        if not x.size:
            found = {"y": np.zeros(x.shape), "mean": np.zeros(exact.mean.shape), "rstd": np.ones(exact.rstd.shape)}
        else:
            found = reference.layer_norm(x, exact.gamma, exact.beta, eps=case.eps, gate=exact.gate, **facts)._asdict()
        if exact.residual is not None:
            found["total"] = reference.total(exact.x, exact.residual, normalization=exact.normalization)
    return {name: array for name, array in found.items() if name in case.outputs}
