"""Layer normalization, its gradients and theirs as jax.numpy formulas: what runs where our kernels do not.

The numerics of the kernels: centred, in the accumulator's dtype, each result rounded once. Source: docs/math.md.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

__all__ = ["accumulator", "backward", "backward_gradients", "forward", "statistics_gradient"]


def accumulator(x: Any) -> Any:
    """float32, or float64 for float64."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


class _Rows:
    """What the formulas share, in the accumulator's dtype: axes, xhat, row means."""

    def __init__(self, x: Any, mean: Any, rstd: Any, normalized: int):
        split = x.ndim - normalized
        self.dtype = accumulator(x)
        self.rows, self.axes = tuple(range(split)), tuple(range(split, x.ndim))
        columns = (*x.shape[:split], *(1,) * normalized)
        self.rstd = rstd.astype(self.dtype).reshape(columns)
        self.centred = x.astype(self.dtype) - mean.astype(self.dtype).reshape(columns)
        self.xhat = self.centred * self.rstd
        self.N = math.prod(x.shape[split:])

    def mean_of(self, array: Any) -> Any:
        return _mean(array, self.axes)

    def over_rows(self, array: Any) -> Any:
        return array.sum(self.rows)


def _mean(array: Any, axes: tuple[int, ...]) -> Any:
    """A mean over nothing is 0."""
    return array.sum(axes, keepdims=True) / max(1, math.prod(array.shape[axis] for axis in axes))


def forward(x: Any, gamma: Any, beta: Any, *, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    """y in x's dtype; mean and rstd (*A, 1, …, 1) in the accumulator's."""
    axes = tuple(range(x.ndim - normalized, x.ndim))
    wide = x.astype(accumulator(x))
    mean = _mean(wide, axes)
    centred = wide - mean
    rstd = 1 / jnp.sqrt(_mean(centred * centred, axes) + eps)
    y = centred * rstd
    if gamma is not None:
        y = y * gamma.astype(y.dtype)
    if beta is not None:
        y = y + beta.astype(y.dtype)
    return y.astype(x.dtype), mean, rstd


def backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    *,
    normalized: int,
    wanted: tuple[bool, bool, bool],
    dtypes: tuple[Any, Any],
) -> tuple[Any, Any, Any]:
    """dx in x's dtype; dgamma and dbeta (*R) in `dtypes`; None where not wanted."""
    at = _Rows(x, mean, rstd, normalized)
    dy = dy.astype(at.dtype)
    dx = dgamma = dbeta = None
    if wanted[0]:
        dxhat = dy if gamma is None else dy * gamma.astype(at.dtype)
        dx = at.rstd * (dxhat - at.mean_of(dxhat) - at.xhat * at.mean_of(dxhat * at.xhat))
        dx = dx.astype(x.dtype)
    if wanted[1]:
        dgamma = at.over_rows(dy * at.xhat).astype(dtypes[0])
    if wanted[2]:
        dbeta = at.over_rows(dy).astype(dtypes[1])
    return dx, dgamma, dbeta


def statistics_gradient(x: Any, mean: Any, rstd: Any, dmean: Any, drstd: Any, *, normalized: int) -> Any:
    """What gradients of mean and rstd add to dx, in x's dtype. None for one that is zero."""
    at = _Rows(x, mean, rstd, normalized)
    dx = jnp.zeros_like(at.xhat)
    if dmean is not None:
        dx = dx + dmean / at.N
    if drstd is not None:
        dx = dx - drstd * at.rstd * at.rstd * at.xhat / at.N
    return dx.astype(x.dtype)


def backward_gradients(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, u: Any, p: Any, q: Any, *, normalized: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Derivatives of S = Σ u·dx + Σ p·dgamma + Σ q·dbeta by dy, x, mean, rstd and gamma; u, p or q is None where zero.

    With g = dy·gamma: Σ u·dx = Σ rstd·(u·g - N·mean(u)·mean(g) - N·mean(u·xhat)·mean(g·xhat)), row by row.
    """
    at = _Rows(x, mean, rstd, normalized)
    wide = dy.astype(at.dtype)
    zeros = jnp.zeros_like(at.xhat)
    of_dy, of_xhat, of_rstd, of_gamma = zeros, zeros, zeros, None
    if u is not None:
        u = u.astype(at.dtype)
        weight = 1 if gamma is None else gamma.astype(at.dtype)
        g = wide * weight
        mean_u_xhat, mean_g_xhat = at.mean_of(u * at.xhat), at.mean_of(g * at.xhat)
        of_g = at.rstd * (u - at.mean_of(u) - at.xhat * mean_u_xhat)
        of_dy = of_g * weight
        of_gamma = None if gamma is None else at.over_rows(of_g * wide).astype(gamma.dtype)
        of_xhat = -at.rstd * (g * mean_u_xhat + u * mean_g_xhat)
        of_rstd = u * (g - at.mean_of(g) - at.xhat * mean_g_xhat)
    if p is not None:
        p = p.astype(at.dtype)
        of_dy = of_dy + p * at.xhat
        of_xhat = of_xhat + p * wide
    if q is not None:
        of_dy = of_dy + q.astype(at.dtype)
    of_x = of_xhat * at.rstd
    of_mean = -of_x.sum(at.axes, keepdims=True)
    of_rstd = (of_rstd + of_xhat * at.centred).sum(at.axes, keepdims=True)
    return (
        of_dy.astype(dy.dtype),
        of_x.astype(x.dtype),
        of_mean.reshape(mean.shape).astype(mean.dtype),
        of_rstd.reshape(rstd.shape).astype(rstd.dtype),
        of_gamma,
    )
