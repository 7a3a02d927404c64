"""Arithmetic on a slice of the columns, in the accumulator's dtype: what a rank can do alone before and after it asks.

x, dy: (M, n). mean, rstd and the row means: (M,) in the accumulator's dtype. gamma, beta: (n,) or None. Rows go in blocks
that stay in a cache, so that temporaries are small. Source: docs/math.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["input_gradient", "moments", "normalized", "row_sums"]

BLOCK_ELEMENTS = 1 << 16  # of a block of rows: 256 KB of float32


def accumulator(x: Any) -> Any:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _blocks(x: Any) -> Iterator[slice]:
    M, n = x.shape
    rows = max(1, BLOCK_ELEMENTS // max(1, n)) if x.device.type == "cpu" else max(1, M)
    return (slice(start, start + rows) for start in range(0, M, rows))


def moments(x: Any) -> Any:
    """(3, M) of each row's slice: a centre near its mean, its mean less the centre, the sum of squares around its mean.

    All are 0 where the slice is empty.
    """
    result = torch.zeros((3, x.shape[0]), dtype=accumulator(x), device=x.device)
    n = x.shape[1]
    for rows in _blocks(x) if n else ():
        wide = x[rows].to(result.dtype)
        centre = wide.sum(1, keepdim=True) / n
        centred = wide - centre
        shift = centred.sum(1, keepdim=True) / n
        result[0, rows], result[1, rows] = centre[:, 0], shift[:, 0]
        result[2, rows] = (centred - shift).square_().sum(1)
    return result


def normalized(x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any) -> Any:
    """y (M, n) in x's dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for rows in _blocks(x):
        result = (x[rows].to(mean.dtype) - mean[rows, None]) * rstd[rows, None]
        if gamma is not None:
            result *= gamma
        if beta is not None:
            result += beta
        y[rows] = result
    return y


def row_sums(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
    """(2, M): the sums of dxhat and of dxhat·xhat over each row's slice."""
    result = mean.new_zeros((2, x.shape[0]))
    for rows in _blocks(x):
        dxhat, xhat = _terms(dy, x, mean, rstd, gamma, rows)
        result[0, rows] = dxhat.sum(1)
        result[1, rows] = (dxhat * xhat).sum(1)
    return result


def input_gradient(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, mean_dxhat: Any, mean_dxhat_xhat: Any) -> Any:
    """dx (M, n) in x's dtype, given the means over whole rows."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for rows in _blocks(x):
        dxhat, xhat = _terms(dy, x, mean, rstd, gamma, rows)
        result = (dxhat - mean_dxhat[rows, None]) - xhat * mean_dxhat_xhat[rows, None]
        dx[rows] = result * rstd[rows, None]
    return dx


def _terms(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, rows: slice) -> tuple[Any, Any]:
    dxhat = dy[rows].to(mean.dtype)
    if gamma is not None:
        dxhat = dxhat * gamma
    return dxhat, (x[rows].to(mean.dtype) - mean[rows, None]) * rstd[rows, None]
