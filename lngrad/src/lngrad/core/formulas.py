"""Layer and RMS normalization and their derivatives as formulas of array operations, written once for torch and JAX.

A framework differentiates these to any order and in any mode, because they are made of its own operations. The numerics are
those of the kernels: centred, in the accumulator's dtype, each result rounded once. The mean is None where a normalization is
not centred, or not looked at. Source: docs/math.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lngrad.core.problem import LAYER_NORM, Normalization
from lngrad.typing import Mask, Shape

Tensor: TypeAlias = Any  # a torch tensor or a JAX array
Dtype: TypeAlias = Any  # torch's or JAX's


@dataclass(frozen=True)
class Namespace:
    """Operations that the frameworks spell differently.

    Attributes:
        cast: (array, dtype) -> the array in that dtype.
        sqrt, zeros_like: As NumPy has them.
        sigmoid: The logistic function.
        accumulator: (x, parameters or None...) -> the dtype that a call with these is computed in.
        whole: Sums over a slice of each row -> those over whole rows, for rows that are cut into as many `parts`.
    """

    cast: Callable[[Tensor, Dtype], Tensor]
    sqrt: Callable[[Tensor], Tensor]
    zeros_like: Callable[[Tensor], Tensor]
    sigmoid: Callable[[Tensor], Tensor]
    accumulator: Callable[..., Dtype]
    whole: Callable[[Tensor], Tensor] = lambda sums: sums
    parts: int = 1


class Rows:
    """Terms that the formulas share, in the dtype that x and the parameters ask for."""

    def __init__(
        self, xp: Namespace, x: Tensor, mean: Tensor | None, rstd: Tensor, normalized: int, *parameters: Tensor | None,
        normalization: Normalization = LAYER_NORM,
    ):  # fmt: skip
        split = x.ndim - normalized
        self.xp, self.dtype = xp, xp.accumulator(x, *parameters)
        self.rows, self.axes = tuple(range(split)), tuple(range(split, x.ndim))
        columns = (*x.shape[:split], *(1,) * normalized)
        self.normalization = normalization
        self.mean: Tensor = None
        if mean is not None and normalization.centred:
            self.mean = self.wide(mean).reshape(columns)
        self.rstd = self.wide(rstd).reshape(columns)
        self.centred = self.wide(x) if self.mean is None else self.wide(x) - self.mean
        self.xhat = self.centred * self.rstd
        self.N = _elements(x.shape[split:]) * xp.parts

    def wide(self, array: Tensor) -> Tensor:
        """The array in the accumulator's dtype."""
        return self.xp.cast(array, self.dtype)

    def mean_of(self, array: Tensor) -> Tensor:
        """The mean over a row, (*A, 1, …, 1)."""
        return self.xp.whole(array.sum(self.axes, keepdims=True)) / self.N

    def less_mean(self, array: Tensor) -> Tensor:
        """The array less its mean over a row where there is a mean: what the mean's dependence on x takes away."""
        return array if self.mean is None else array - self.mean_of(array)

    def scale(self, gamma: Tensor | None) -> Any:
        """The factor of xhat: offset + gamma."""
        return self.normalization.scale(1.0 if gamma is None else self.wide(gamma))

    def scaled(self, array: Tensor, gamma: Tensor | None) -> Tensor:
        """The array times offset + gamma."""
        return _scaled(array, None if gamma is None else self.wide(gamma), self.normalization)

    def over_rows(self, array: Tensor, gamma: Tensor | None) -> Tensor:
        """The sum over all rows, (*R); over those of each sample, in gamma's shape, where each has one."""
        own = gamma is not None and gamma.ndim > len(self.axes)
        rows = tuple(axis for axis in self.rows if gamma.shape[axis] == 1) if own else self.rows  # type: ignore[union-attr]
        return array.sum(rows, keepdims=own) if rows else array  # torch's sum over no axes is one over all


def _elements(shape: Shape) -> int:
    """Elements of a row; 1 for none, so that a mean over nothing is 0."""
    return max(1, math.prod(shape))


def _scaled(array: Tensor, gamma: Tensor | None, normalization: Normalization) -> Tensor:
    """An array times offset + gamma."""
    if gamma is None and not normalization.offset:
        return array
    return array * normalization.scale(1.0 if gamma is None else gamma)


def total(
    xp: Namespace, x: Tensor, residual: Tensor, *parameters: Tensor | None, normalization: Normalization = LAYER_NORM
) -> Tensor:
    """alpha·x + residual in the residual's dtype: what is normalized where there is a residual. Of tangents, its tangent."""
    dtype = xp.accumulator(x, *parameters)
    wide = xp.cast(x, dtype) if normalization.alpha == 1 else xp.cast(x, dtype) * normalization.alpha
    return xp.cast(wide + xp.cast(residual, dtype), residual.dtype)


def forward(
    xp: Namespace, x: Tensor, gamma: Tensor | None, beta: Tensor | None, *, normalized: int, eps: Any,
    normalization: Normalization = LAYER_NORM, dtype_y: Dtype = None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """y in x's dtype; mean and rstd (*A, 1, …, 1) in the accumulator's.

    Args:
        xp: The framework.
        x: (*A, *R).
        gamma, beta: (*R) or None.
        normalized: How many dimensions R has.
        eps: A number, or an array of no dimensions.
        normalization: Which one it is.
        dtype_y: Of y, where that is not x's: x is a wider total.
    """
    axes = tuple(range(x.ndim - normalized, x.ndim))
    N = _elements(x.shape[x.ndim - normalized :]) * xp.parts
    dtype = xp.accumulator(x, gamma, beta)
    wide = xp.cast(x, dtype)
    mean = xp.whole(wide.sum(axes, keepdims=True)) / N if normalization.centred else None
    centred = wide if mean is None else wide - mean
    rstd = 1 / xp.sqrt(xp.whole((centred * centred).sum(axes, keepdims=True)) / N + eps)
    y = _scaled(centred * rstd, None if gamma is None else xp.cast(gamma, dtype), normalization)
    if beta is not None:
        y = y + xp.cast(beta, dtype)
    return xp.cast(y, dtype_y or x.dtype), mean, rstd


def gated_forward(
    xp: Namespace, x: Tensor, gamma: Tensor | None, gate: Tensor, *, normalized: int, eps: Any,
    normalization: Normalization,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y in x's dtype, multiplied by silu(gate) before it is rounded, or of x·silu(gate); and rstd."""
    dtype = xp.accumulator(x, gamma)
    wide = xp.cast(gate, dtype)
    silu = wide * xp.sigmoid(wide)
    h = x if normalization.norm_before_gate else xp.cast(x, dtype) * silu
    y, _, rstd = forward(xp, h, gamma, None, normalized=normalized, eps=eps, normalization=normalization, dtype_y=dtype)
    return xp.cast(y * silu if normalization.norm_before_gate else y, x.dtype), rstd


def backward(
    xp: Namespace, dy: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, gamma: Tensor | None,
    dtotal: Tensor | None = None, *, normalized: int, wanted: Mask, dtypes: tuple[Dtype, Dtype],
    normalization: Normalization = LAYER_NORM,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """dx in x's dtype; dgamma and dbeta (*R) in `dtypes`; None where not wanted. x is the total where there is a residual."""
    at = Rows(xp, x, mean, rstd, normalized, gamma, normalization=normalization)
    dy = at.wide(dy)
    dx = dgamma = dbeta = None
    if wanted[0]:
        dxhat = at.scaled(dy, gamma)
        dx = at.rstd * (at.less_mean(dxhat) - at.xhat * at.mean_of(dxhat * at.xhat))
        if dtotal is not None:
            dx = dx + at.wide(dtotal)
        dx = xp.cast(dx, x.dtype)
    if wanted[1]:
        dgamma = xp.cast(at.over_rows(dy * at.xhat, gamma), dtypes[0])
    if wanted[2]:
        dbeta = xp.cast(at.over_rows(dy, gamma), dtypes[1])
    return dx, dgamma, dbeta


def statistics_gradient(
    xp: Namespace, x: Tensor, mean: Tensor | None, rstd: Tensor, dmean: Tensor | None, drstd: Tensor | None, *,
    normalized: int, normalization: Normalization = LAYER_NORM,
) -> Tensor:  # fmt: skip
    """The share of dx that comes from gradients of mean and rstd, in x's dtype. None stands for a gradient of zero."""
    at = Rows(xp, x, mean, rstd, normalized, dmean, drstd, normalization=normalization)
    dx = xp.zeros_like(at.xhat)
    if dmean is not None:
        dx = dx + xp.whole(dmean) / at.N
    if drstd is not None:
        dx = dx - xp.whole(drstd) * at.rstd * at.rstd * at.xhat / at.N
    return xp.cast(dx, x.dtype)


def forward_tangents(
    xp: Namespace, x: Tensor, mean: Tensor | None, rstd: Tensor, gamma: Tensor | None, of_x: Tensor | None,
    of_gamma: Tensor | None, of_beta: Tensor | None, *, normalized: int, normalization: Normalization = LAYER_NORM,
    dtype_y: Dtype = None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Tangents of y, mean and rstd: linear in those of x, gamma and beta. None stands for a tangent of zero; dtype_y as in
    forward."""
    at = Rows(xp, x, mean, rstd, normalized, gamma, of_gamma, of_beta, normalization=normalization)
    if of_x is None:
        of_y, of_mean, of_rstd = xp.zeros_like(at.xhat), xp.zeros_like(at.rstd), xp.zeros_like(at.rstd)
    else:
        of_x = at.wide(of_x)
        of_mean, mean_xhat = at.mean_of(of_x), at.mean_of(of_x * at.xhat)
        of_y = at.scaled(at.rstd * (at.less_mean(of_x) - at.xhat * mean_xhat), gamma)
        of_rstd = -at.rstd * at.rstd * mean_xhat
    if of_gamma is not None:
        of_y = of_y + at.xhat * at.wide(of_gamma)
    if of_beta is not None:
        of_y = of_y + at.wide(of_beta)
    of_mean = None if mean is None or at.mean is None else xp.cast(of_mean, mean.dtype)
    return xp.cast(of_y, dtype_y or x.dtype), of_mean, xp.cast(of_rstd, rstd.dtype)
