"""How large the errors of gradients may be, from what is known without data.

Roundings are taken as independent, so their sum grows with the root of their number (Higham and Mary, "A new approach to
probabilistic rounding error analysis", 2019). The numbers of roundings follow from the orders of sums (docs/precision.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lngrad.core.column_tree import CHUNK
from lngrad.core.dtypes import DTYPES, UNIT_ROUNDOFF, accumulator_for
from lngrad.errors import DtypeError, NumberError, ShapeError

COMPENSATED_FROM, _SEGMENT, _LANES = 8.0, 512, 8  # as lngrad.cpu.jobs has them, which a test compares
_SPREAD = 3.0  # a bound over what is expected: 10^5 problems of scripts/error_bounds.py came to 0.71 of theirs at most


class ErrorBound(NamedTuple):
    """Bounds of errors in the 2-norm over all elements, each relative to a scale that the data give.

    Attributes:
        dx: ‖error‖ ≤ dx·(‖rstd·dxhat‖ + ‖dx‖).
        dgamma, dbeta: ‖error‖ ≤ bound·‖(Σ t²)^½ + |Σ t|‖, the sums over rows of t = dy·xhat or dy, the norm over columns.
    """

    dx: float
    dgamma: float
    dbeta: float


def error_bound(
    M: int,
    N: int,
    dtype: str = "float32",
    *,
    gamma_dtype: str | None = None,
    condition: float = 0.0,
    complete_mean: bool = False,
) -> ErrorBound:
    """How far dx, dgamma and dbeta of layer normalization, forward and backward, may be from the exact gradients of x.

    It holds for data that do not follow the roundings, as random data, from N = 4 on and where no result overflows or is
    subnormal. RMS normalization has a condition of 0.

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
    mean = u * (min(condition, COMPENSATED_FROM / 2) if complete_mean else condition) / 2  # that xhat is off by
    statistics = u * (
        1.0 + 0.1 * math.sqrt(min(N, _SEGMENT) / _LANES)
    )  # that rstd, xhat and the means of a row are off by
    chunks = -(-M // CHUNK)
    # A sum of k random terms one by one: errors of its partial sums, over the root of the sum of the terms' squares.
    sums = u * math.sqrt(min(M, CHUNK) / 32 + math.log2(chunks) / 4)
    dx = statistics + mean * math.sqrt(2 / N) + UNIT_ROUNDOFF[dtype] / 2
    few = 1 + 16 / N  # ‖dy‖ over ‖dy·xhat‖ of a short row may be large: what 1 of 10^5 random rows comes to
    dgamma = statistics + sums + mean * few + UNIT_ROUNDOFF[gamma_dtype] / 2
    dbeta = sums + UNIT_ROUNDOFF[gamma_dtype] / 2
    return ErrorBound(_SPREAD * dx, _SPREAD * dgamma, _SPREAD * dbeta)
