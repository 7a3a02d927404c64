"""Golden normalization in float64, the whole family: short enough to be checked by reading. Source: docs/math.md."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.core.problem import LAYER_NORM, Forward, GatedGrads, Grads, Normalization
from lngrad.typing import AnyArray

__all__ = ["Terms", "backward_terms", "layer_norm", "layer_norm_backward"]

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def total(x: AnyArray, residual: AnyArray, *, normalization: Normalization = LAYER_NORM) -> Array:
    """h = alpha·x + residual in float64, which is normalized in place of x."""
    return normalization.alpha * _float64(x, 0)[0] + _float64(residual, 0)[0]


def layer_norm(
    x: AnyArray,
    gamma: AnyArray | None = None,
    beta: AnyArray | None = None,
    *,
    normalized: int = 1,
    eps: float = 1e-5,
    normalization: Normalization = LAYER_NORM,
    gate: AnyArray | None = None,
) -> Forward:
    """y, mean and rstd in float64.

    Args:
        x: (*A, *R), any float dtype.
        gamma, beta: (*R), or (*S, 1, …, 1, *R) for the first dimensions of A; None for 1 and 0.
        normalized: How many dimensions R has.
        eps: Added to the variance.
        normalization: centred, offset and norm_before_gate are read.
        gate: (*A, *R), None for no factor.
    """
    of_x, of_y, _ = gate_factors(gate, normalization)
    x, _, axes = _float64(x, normalized)
    x = x * of_x
    exponents = np.frexp(np.abs(x).max(axes, keepdims=True, initial=math.sqrt(eps)))[1]
    exponents = np.where(np.abs(exponents) > 400, exponents, 0)  # else squares might overflow or vanish
    x = np.ldexp(x, -exponents)
    mean = x.mean(axes, keepdims=True)
    mean = mean if normalization.centred else np.zeros_like(mean)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    no_spread = variance == 0
    rstd = 1 / np.sqrt(variance + np.where(no_spread, eps, np.ldexp(np.float64(eps), -2 * exponents)))
    beta = 0.0 if beta is None else np.asarray(beta, np.float64)
    y = ((x - mean) * rstd * _scale(gamma, normalization) + beta) * of_y
    return Forward(y, np.ldexp(mean, exponents), np.where(no_spread, rstd, np.ldexp(rstd, -exponents)))


def gate_factors(gate: Any, normalization: Normalization) -> tuple[Any, Any, Any]:
    """The factors of x and of y in float64, one of which is silu(gate), and its derivative as (sigmoid, the other factor)."""
    if gate is None:
        return np.float64(1), np.float64(1), None
    z = _float64(gate, 0)[0]
    e = np.exp(-np.abs(z))
    sigmoid = np.where(z < 0, e, 1) / (1 + e)
    of_x, of_y = (np.float64(1), z * sigmoid) if normalization.norm_before_gate else (z * sigmoid, np.float64(1))
    return of_x, of_y, (sigmoid, z * (1 - sigmoid))


class Terms(NamedTuple):
    """Terms of the gradients, in float64: dy, xhat and dxhat (*A, *R), rstd (*A, 1, …, 1)."""

    dy: Array
    xhat: Array
    dxhat: Array
    rstd: Array


def backward_terms(
    dy: AnyArray,
    x: AnyArray,
    mean: AnyArray,
    rstd: AnyArray,
    gamma: AnyArray | None = None,
    *,
    normalized: int = 1,
    normalization: Normalization = LAYER_NORM,
    gate: AnyArray | None = None,
) -> Terms:
    """xhat = (x - mean)·rstd and dxhat = dy·(offset + gamma); the arguments are those of layer_norm_backward."""
    of_x, of_y, _ = gate_factors(gate, normalization)
    dy, x = _float64(dy, normalized)[0] * of_y, _float64(x, normalized)[0] * of_x
    statistics = x.shape[: x.ndim - normalized] + (1,) * normalized
    mean, rstd = (np.asarray(array, np.float64).reshape(statistics) for array in (mean, rstd))
    part = np.where(rstd < 1, 0.25, 1.0)  # of large x, whose distance from the mean might overflow
    return Terms(dy, (x * part - mean * part) * (rstd / part), dy * _scale(gamma, normalization), rstd)


def layer_norm_backward(
    dy: AnyArray,
    x: AnyArray,
    mean: AnyArray,
    rstd: AnyArray,
    gamma: AnyArray | None = None,
    *,
    normalized: int = 1,
    normalization: Normalization = LAYER_NORM,
    dtotal: AnyArray | None = None,
    gate: AnyArray | None = None,
) -> Any:
    """dx, dgamma, and dbeta or dgate, in float64, from the row statistics as they are.

    Args:
        dy, x: (*A, *R), any float dtype.
        mean, rstd: Any shape with one element per row.
        gamma: (*R), or (*S, 1, …, 1, *R), whose sums dgamma and dbeta are then; None for 1.
        normalized: How many dimensions R has.
        normalization: centred, offset and norm_before_gate are read.
        dtotal: (*A, *R) or None for 0: added to dx, where x is a total that was used besides.
        gate: (*A, *R) or None.

    Returns:
        Grads; with a gate GatedGrads.
    """
    ungated_dy, ungated_x = (_float64(array, normalized)[0] for array in (dy, x))
    terms = backward_terms(dy, x, mean, rstd, gamma, normalized=normalized, normalization=normalization, gate=gate)
    dy, xhat, dxhat, rstd = terms
    _, rows, axes = _float64(dy, normalized)
    N = max(1, math.prod(dy.shape[dy.ndim - normalized :]))  # a mean over nothing is 0, and no warning
    mean_dxhat = dxhat.sum(axes, keepdims=True) / N if normalization.centred else 0.0
    mean_dxhat_xhat = (dxhat * xhat).sum(axes, keepdims=True) / N
    dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
    if dtotal is not None:
        dx += _float64(dtotal, normalized)[0]
    dgamma = over_rows(dy * xhat, rows, gamma)
    if gate is None:
        return Grads(dx, dgamma, over_rows(dy, rows, gamma))
    of_x, _, (sigmoid, rest) = gate_factors(gate, normalization)
    of_silu = ungated_dy * xhat * _scale(gamma, normalization) if normalization.norm_before_gate else dx * ungated_x
    return GatedGrads(dx * of_x, dgamma, of_silu * sigmoid * (1 + rest))


def over_rows(array: Array, rows: tuple[int, ...], gamma: Any) -> Any:
    """The sum over all rows, or over those of each sample, in the shape of a gamma that is one for each."""
    if gamma is None or gamma.ndim < array.ndim or not rows:
        return array.sum(rows)
    return array.sum(tuple(axis for axis in rows if gamma.shape[axis] == 1), keepdims=True)


def _scale(gamma: AnyArray | None, normalization: Normalization) -> Any:
    return normalization.scale(1.0 if gamma is None else np.asarray(gamma, np.float64))


def _float64(array: AnyArray, normalized: int) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """The array in float64, the axes of its rows and the axes that are normalized."""
    array = np.asarray(array).astype(np.float64)
    split = array.ndim - normalized
    return array, tuple(range(split)), tuple(range(split, array.ndim))
