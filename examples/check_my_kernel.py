"""A kernel of one's own, with a mistake in it, as `lngrad check` wants it; run as a script it checks itself.

    lngrad check cases/lngrad.yaml --impl examples.check_my_kernel:backward --report report.html
    python examples/check_my_kernel.py

A function may take any of dy, x, mean, rstd, variance, gamma, eps, normalized_shape, output_mask, output_dtypes, by these
names; NumPy arrays come in, and NumPy arrays or tensors dx, dgamma, dbeta go out, None where masked off.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np


def backward(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized_shape: tuple[int, ...], output_mask: Any
) -> tuple[Any, ...]:
    """The gradients, with one of the two row means forgotten."""
    N = math.prod(normalized_shape)
    M = mean.size
    wide = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        xhat = (x.reshape(M, N).astype(wide) - mean.reshape(M, 1)) * rstd.reshape(M, 1).astype(wide)
        dy = dy.reshape(M, N).astype(wide)
        dxhat = dy if gamma is None else dy * gamma.reshape(1, N).astype(wide)
        mean_dxhat_xhat = (dxhat * xhat).sum(1, keepdims=True) / max(N, 1)
        dx = rstd.reshape(M, 1) * (dxhat - xhat * mean_dxhat_xhat)  # dxhat's own mean is not subtracted
        dgamma, dbeta = (dy * xhat).sum(0), dy.sum(0)
    parameter = x.dtype if gamma is None else gamma.dtype
    results = (
        dx.astype(x.dtype).reshape(x.shape),
        dgamma.astype(np.float32 if parameter.itemsize < 4 else parameter).reshape(normalized_shape),
        dbeta.astype(np.float32 if parameter.itemsize < 4 else parameter).reshape(normalized_shape),
    )
    return tuple(result if wanted else None for result, wanted in zip(results, output_mask, strict=True))


def main() -> int:
    from lngrad.check.case import CheckCase, Source
    from lngrad.check.judge import Options, check_case

    case = CheckCase(
        name="mine", source=Source("here"), lead=(30,), normalized=(100,), dtype="float32", gamma_dtype="float32",
        statistics_dtype="float32", ranges={"mean": None, "statistic": None},
    )  # fmt: skip
    result = check_case(case, Options(impl=f"{backward.__module__}:backward"))
    print(result.reason)
    print(f"{result.mistake}: {result.sentence}")
    return 0 if result.mistake == "mean of dxhat missing" else 1


if __name__ == "__main__":
    sys.exit(main())
