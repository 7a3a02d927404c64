"""What an implementation is: a function from a case and its inputs to gradients; and what several of them need."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.inputs import DrawnInputs
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.problem import Grads
from lngrad.typing import Array

Implementation = Callable[[CheckCase, DrawnInputs], Grads]


class NotApplicable(Exception):
    """This implementation does not do what the case asks; the text says why. The case is skipped, not failed."""


def parameters(case: CheckCase) -> list[Array | None]:
    """Arrays for dgamma and dbeta in the dtypes that the case declares; filled, so that what is not written is seen."""
    return [
        np.full(case.normalized, np.nan, numpy_dtype(dtype)) if wanted else None
        for dtype, wanted in zip(case.output_dtypes[1:], case.output_mask[1:], strict=True)
    ]


def dx_as_x(case: CheckCase) -> None:
    """Skip a case whose dx has another dtype than x."""
    if case.output_mask[0] and case.output_dtypes[0] != case.dtype:
        raise NotApplicable(f"dx in {case.output_dtypes[0]}, x in {case.dtype}")


def parameters_as_gamma(case: CheckCase, whose: str) -> None:
    """Skip a case whose dgamma or dbeta has another dtype than gamma."""
    parameter = case.gamma_dtype or case.dtype
    for name, dtype, wanted in zip(OUTPUTS[1:], case.output_dtypes[1:], case.output_mask[1:], strict=True):
        if wanted and dtype != parameter:
            raise NotApplicable(f"{whose} gives {name} in gamma's dtype, {parameter}, not in {dtype}")


def no_variance_below_zero(given: DrawnInputs, whose: str) -> None:
    """Skip a case whose rstd no variance gives."""
    if not np.all(np.asarray(given.inputs.rstd, np.float64) > 0):
        raise NotApplicable(f"rstd is not positive: {whose} takes a variance")
