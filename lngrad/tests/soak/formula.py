"""Layer and RMS normalization and their gradients in wider precision, row by row: no code of lngrad is used here.

With g = dy·gamma and h = (x - mean)·rstd: dx = rstd/N · (N·g - Σg - h·Σ(g·h)); without a centre mean and
Σg are left out. Every result comes with the sum of the
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


def total(x: Array, residual: Array, alpha: float, float_type: Any) -> Result:
    """alpha·x + residual, (M, N)."""
    scaled, other = _to(float_type, x) * float_type(alpha), _to(float_type, residual)
    return scaled + other, np.abs(scaled) + np.abs(other)


def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    float_type: Any,
    centred: bool = True,
    offset: float = 0.0,
) -> dict[str, Result]:
    """y (M, N), mean and rstd (M,) of x (M, N); gamma, beta (N,). A row with an infinity has neither mean nor rstd.

    Without a centre mean is 0, and rstd that of the squares.
    """
    x = _to(float_type, x)
    N = x.shape[1]
    mean = x.sum(1) / N if centred else np.zeros(len(x), float_type)
    mean[np.isinf(mean)] = np.nan
    distance = x - mean[:, None]
    rstd = (np.square(distance).sum(1) / N + eps) ** float_type(-0.5)
    size = np.abs(x).sum(1) / N if centred else np.zeros(len(x), float_type)
    y, y_scale = distance * rstd[:, None], (np.abs(distance) + size[:, None]) * rstd[:, None]
    if gamma is not None or offset:
        scale = float_type(1.0) if gamma is None else _to(float_type, gamma)
        y, y_scale = y * (scale + offset), y_scale * np.abs(scale + offset)
    if beta is not None:
        beta = _to(float_type, beta)
        y, y_scale = y + beta, y_scale + np.abs(beta)
    return {"y": (y, y_scale), "mean": (mean, size), "rstd": (rstd, rstd * (1 + size * rstd))}


def backward(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None, float_type: Any, centred: bool = True,
    offset: float = 0.0, dtotal: Array | None = None,
) -> dict[str, Result]:  # fmt: skip
    """dx (M, N), dgamma and dbeta (N,); mean, rstd (M,). Without a centre mean is 0, and does not depend on x."""
    dy, rstd = _to(float_type, dy), _to(float_type, rstd)[:, None]
    N = dy.shape[1]
    h = (_to(float_type, x) - _to(float_type, mean)[:, None] if centred else _to(float_type, x)) * rstd
    g = (
        dy
        if gamma is None and not offset
        else dy * ((float_type(1.0) if gamma is None else _to(float_type, gamma)) + offset)
    )
    gh, dyh = g * h, dy * h
    sums = g.sum(1)[:, None] if centred else 0
    dx = rstd / N * (N * g - sums - h * gh.sum(1)[:, None])
    a, b = np.abs(g), np.abs(h)
    sums = a.sum(1)[:, None] if centred else 0
    scale = np.abs(rstd) / N * (N * a + sums + b * np.abs(gh).sum(1)[:, None])
    if dtotal is not None:
        dx, scale = dx + _to(float_type, dtotal), scale + np.abs(_to(float_type, dtotal))
    return {"dx": (dx, scale), "dgamma": (dyh.sum(0), np.abs(dyh).sum(0)), "dbeta": (dy.sum(0), np.abs(dy).sum(0))}


def _to(float_type: Any, array: Array) -> Array:
    return array.astype(np.float64) if float_type is np.float64 else array.astype(np.float64).astype(float_type)
