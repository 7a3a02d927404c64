"""Layer normalization and its gradients in wider precision, row by row: no code of lngrad is used here.

With g = dy·gamma and h = (x - mean)·rstd: dx = rstd/N · (N·g - Σg - h·Σ(g·h)). Every result comes with the sum of the
absolute values of its terms, which is what its rounding errors are measured by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lngrad.typing import Array

Result = tuple[Array, Array]  # the value and the scale of its error


def wider(accumulator: str) -> Any:
    """The type in which calls with sums in `accumulator` are checked: 29 bits more than float32, or extended precision."""
    return np.float64 if accumulator == "float32" else np.longdouble


def forward(x: Array, gamma: Array | None, beta: Array | None, eps: float, wide: Any) -> tuple[Result, Result, Result]:
    """y (M, N), mean and rstd (M,) of x (M, N); gamma, beta (N,). A row with an infinity has neither mean nor rstd."""
    x = _in(wide, x)
    N = x.shape[1]
    mean = x.sum(1) / N
    mean[np.isinf(mean)] = np.nan
    distance = x - mean[:, None]
    rstd = (np.square(distance).sum(1) / N + eps) ** wide(-0.5)
    size = np.abs(x).sum(1) / N
    y, y_scale = distance * rstd[:, None], (np.abs(distance) + size[:, None]) * rstd[:, None]
    if gamma is not None:
        gamma = _in(wide, gamma)
        y, y_scale = y * gamma, y_scale * np.abs(gamma)
    if beta is not None:
        beta = _in(wide, beta)
        y, y_scale = y + beta, y_scale + np.abs(beta)
    return (y, y_scale), (mean, size), (rstd, rstd * (1 + size * rstd))


def backward(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None, wide: Any
) -> tuple[Result, Result, Result]:
    """dx (M, N), dgamma and dbeta (N,); mean, rstd (M,)."""
    dy, rstd = _in(wide, dy), _in(wide, rstd)[:, None]
    N = dy.shape[1]
    h = (_in(wide, x) - _in(wide, mean)[:, None]) * rstd
    g = dy if gamma is None else dy * _in(wide, gamma)
    gh, dyh = g * h, dy * h
    dx = rstd / N * (N * g - g.sum(1)[:, None] - h * gh.sum(1)[:, None])
    a, b = np.abs(g), np.abs(h)
    scale = np.abs(rstd) / N * (N * a + a.sum(1)[:, None] + b * np.abs(gh).sum(1)[:, None])
    return (dx, scale), (dyh.sum(0), np.abs(dyh).sum(0)), (dy.sum(0), np.abs(dy).sum(0))


def _in(wide: Any, array: Array) -> Array:
    return array.astype(np.float64) if wide is np.float64 else array.astype(np.float64).astype(wide)
