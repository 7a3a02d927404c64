"""Bounds of the errors of gradients, from what is known without data.

Roundings are taken as independent, so their sum grows with the root of their number (Higham and Mary, "A new approach to
probabilistic rounding error analysis", 2019). The numbers of roundings follow from the orders of sums (docs/precision.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lngrad.core.column_tree import CHUNK
from lngrad.errors import DtypeError, NumberError, ShapeError
from lngrad.support.dtypes import DTYPES, UNIT_ROUNDOFF, accumulator_for

COMPENSATED_FROM, _SEGMENT, _LANES = 8.0, 512, 8  # as lngrad.cpu.jobs has them, which a test compares
_SPREAD = 3.0  # a bound over what is expected: docs/precision.md says what random and structured problems come to


class ErrorBound(NamedTuple):
    """Bounds of errors in the 2-norm, each a sum of two: a relative one, and what follows from the means' rounding.

    Attributes:
        dx: ‖error‖ ≤ dx·(‖rstd·dxhat‖ + ‖dx‖) + xhat·‖rstd·(|Σ dxhat| + |Σ dxhat·xhat|)‖/√N, the sums over a row, the last norm
            over rows.
        dgamma: ‖error‖ ≤ dgamma·‖(Σ t²)^½ + |Σ t|‖ + xhat·‖(Σ dy²)^½ + |Σ dy|‖, the sums over rows of t = dy·xhat and of dy,
            the norms over columns.
        dbeta: ‖error‖ ≤ dbeta·‖(Σ dy²)^½ + |Σ dy|‖.
        xhat: How far the xhat of a row may be off, all its elements alike, because its mean is rounded.
    """

    dx: float
    dgamma: float
    dbeta: float
    xhat: float


def error_bound(
    M: int,
    N: int,
    dtype: str = "float32",
    *,
    gamma_dtype: str | None = None,
    condition: float = 0.0,
    complete_mean: bool = False,
) -> ErrorBound:
    """Bounds of the errors of dx, dgamma and dbeta of layer normalization, forward and backward, beside x's exact gradients.

    It holds for data that do not follow the roundings: random and structured ones, such as a dy of ones, rows that repeat or
    x that is nearly constant; from N = 4 on, and where no result overflows its dtype (float16 from 65520 on) or is subnormal:
    of such results it says nothing. RMS normalization has a condition of 0 and an xhat of 0.

    Args:
        M, N: Rows, and elements that are normalized.
        dtype: Of x, dy and dx.
        gamma_dtype: Of gamma, dgamma and dbeta; None: dtype.
        condition: The largest |mean|·rstd of a row: its mean over its spread.
        complete_mean: Whether the backward finds what the means lost when they were rounded: lngrad.torch and lngrad.jax do.

    Raises:
        ShapeError, DtypeError, NumberError: An argument is not such a number or dtype.
    """
    for name, number in (("M", M), ("N", N)):
        if not isinstance(number, int) or number < 1:
            raise ShapeError(f"{name}: expected at least 1, got {number!r}")
    gamma_dtype = dtype if gamma_dtype is None else gamma_dtype
    for name, kind in (("dtype", dtype), ("gamma_dtype", gamma_dtype)):
        if kind not in DTYPES:
            raise DtypeError(f"{name}: expected one of {', '.join(DTYPES)}, got {kind!r}")
    if not 0 <= condition < math.inf:
        raise NumberError(f"condition: expected a finite number of at least 0, got {condition!r}")
    u = UNIT_ROUNDOFF[accumulator_for(dtype, gamma_dtype)]
    known = min(condition, COMPENSATED_FROM / 2) if complete_mean else condition
    xhat = u * (known + 1) / 2
    statistics = u * (1.0 + 0.1 * math.sqrt(min(N, _SEGMENT) / _LANES))  # that rstd, xhat and means of a row are off by
    rows, chunks = min(M, CHUNK), -(-M // CHUNK)
    # A sum of k random terms one by one: errors of its partial sums, over the root of the sum of the terms' squares. Equal
    # terms are rounded alike while their sum stays in one binade, so that errors add up: to 21 u of 64 terms.
    sums = u * math.sqrt(rows / 32 + (rows / 10) ** 2 + math.log2(chunks) / 4)
    dx = statistics + UNIT_ROUNDOFF[dtype] / 2
    dgamma = statistics + sums + UNIT_ROUNDOFF[gamma_dtype] / 2
    dbeta = sums + UNIT_ROUNDOFF[gamma_dtype] / 2
    return ErrorBound(_SPREAD * dx, _SPREAD * dgamma, _SPREAD * dbeta, _SPREAD * xhat)
