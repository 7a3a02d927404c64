"""Layer normalization and its gradients in extended precision, row by row: no code of lngrad is used here.

With g = dy·gamma and h = (x - mean)·rstd: dx = rstd/N · (N·g - Σg - h·Σ(g·h)). Every result comes with the sum of the
absolute values of its terms, which is what its rounding errors are measured by.
"""

from __future__ import annotations

import numpy as np

from lngrad.typing import Array

__all__ = ["backward", "forward"]

Result = tuple[Array, Array]  # the value and the scale of its error


def forward(x: Array, gamma: Array | None, beta: Array | None, eps: float) -> tuple[Result, Result, Result]:
    """y (M, N), mean and rstd (M,) of x (M, N); gamma, beta (N,)."""
    x = _long(x)
    N = x.shape[1]
    total = x.sum(1)
    mean = total / N
    distance = x - mean[:, None]
    rstd = (np.square(distance).sum(1) / N + eps) ** np.longdouble(-0.5)
    size = np.abs(x).sum(1) / N
    y, y_scale = distance * rstd[:, None], (np.abs(distance) + size[:, None]) * rstd[:, None]
    if gamma is not None:
        y, y_scale = y * _long(gamma), y_scale * np.abs(_long(gamma))
    if beta is not None:
        y, y_scale = y + _long(beta), y_scale + np.abs(_long(beta))
    return (y, y_scale), (mean, size), (rstd, rstd * (1 + size * rstd))


def backward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None) -> tuple[Result, Result, Result]:
    """dx (M, N), dgamma and dbeta (N,); mean, rstd (M,)."""
    dy, rstd = _long(dy), _long(rstd)[:, None]
    N = dy.shape[1]
    h = (_long(x) - _long(mean)[:, None]) * rstd
    g = dy if gamma is None else dy * _long(gamma)
    dx = rstd / N * (N * g - g.sum(1)[:, None] - h * (g * h).sum(1)[:, None])
    a, b = np.abs(g), np.abs(h)
    scale = np.abs(rstd) / N * (N * a + a.sum(1)[:, None] + b * (a * b).sum(1)[:, None])
    return (dx, scale), ((dy * h).sum(0), np.abs(dy * h).sum(0)), (dy.sum(0), np.abs(dy).sum(0))


def _long(array: Array) -> Array:
    return array.astype(np.float64).astype(np.longdouble)
