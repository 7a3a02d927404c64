"""The normalizations and their derivatives as formulas of array operations, written once for torch and JAX.

A framework differentiates these to any order and in any mode, because they are made of its own operations. The numerics are
those of the kernels: centred, in the accumulator's dtype, each result rounded once. Source: docs/math.md.
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
    """What the frameworks spell differently.

    Attributes:
        cast: (array, dtype) -> the array in that dtype.
        sqrt, zeros_like: As NumPy has them.
        accumulator: (x, parameters or None...) -> the dtype that a call with these is computed in.
    """

    cast: Callable[[Tensor, Dtype], Tensor]
    sqrt: Callable[[Tensor], Tensor]
    zeros_like: Callable[[Tensor], Tensor]
    accumulator: Callable[..., Dtype]


class Rows:
    """What the formulas share, in the dtype that x and the parameters ask for: axes, statistics as columns, xhat, row means.

    mean is not looked at where the normalization is not centred.
    """

    def __init__(
        self, xp: Namespace, x: Tensor, mean: Tensor, rstd: Tensor, normalized: int, *parameters: Tensor | None,
        normalization: Normalization = LAYER_NORM,
    ):  # fmt: skip
        split = x.ndim - normalized
        self.xp, self.dtype = xp, xp.accumulator(x, *parameters)
        self.rows, self.axes = tuple(range(split)), tuple(range(split, x.ndim))
        columns = (*x.shape[:split], *(1,) * normalized)
        self.normalization = normalization
        self.rstd = self.wide(rstd).reshape(columns)
        self.centred = self.wide(x) - self.wide(mean).reshape(columns) if normalization.centred else self.wide(x)
        self.xhat = self.centred * self.rstd
        self.N = _elements(x.shape[split:])

    def wide(self, array: Tensor) -> Tensor:
        """In the accumulator's dtype."""
        return self.xp.cast(array, self.dtype)

    def mean_of(self, array: Tensor) -> Tensor:
        """The mean over a row, (*A, 1, …, 1)."""
        return array.sum(self.axes, keepdims=True) / self.N

    def less_mean(self, array: Tensor) -> Tensor:
        """The array less its mean over a row where the normalization is centred: what mean's dependence on x takes away."""
        return array - self.mean_of(array) if self.normalization.centred else array

    def scale(self, gamma: Tensor | None) -> Any:
        """What xhat is multiplied with."""
        return self.normalization.scale(1.0 if gamma is None else self.wide(gamma))

    def over_rows(self, array: Tensor) -> Tensor:
        """The sum over all rows, (*R)."""
        return array.sum(self.rows) if self.rows else array  # torch's sum over no axes is one over all


def _elements(shape: Shape) -> int:
    """Elements of a row; 1 for none, so that a mean over nothing is 0."""
    return max(1, math.prod(shape))


def forward(
    xp: Namespace,
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    normalized: int,
    eps: Any,
    normalization: Normalization = LAYER_NORM,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """y in x's dtype; mean and rstd (*A, 1, …, 1) in the accumulator's; no mean where the normalization is not centred.

    Args:
        xp: The framework.
        x: (*A, *R).
        gamma, beta: (*R) or None.
        normalized: How many dimensions R has.
        eps: A number, or an array of no dimensions.
        normalization: Which one, without a residual: x is the total.
    """
    axes = tuple(range(x.ndim - normalized, x.ndim))
    N = _elements(x.shape[x.ndim - normalized :])
    dtype = xp.accumulator(x, gamma, beta)
    wide = xp.cast(x, dtype)
    mean = wide.sum(axes, keepdims=True) / N if normalization.centred else None
    centred = wide if mean is None else wide - mean
    rstd = 1 / xp.sqrt((centred * centred).sum(axes, keepdims=True) / N + eps)
    y = centred * rstd
    if gamma is not None or normalization.offset:
        y = y * normalization.scale(1.0 if gamma is None else xp.cast(gamma, dtype))
    if beta is not None:
        y = y + xp.cast(beta, dtype)
    return xp.cast(y, x.dtype), mean, rstd


def backward(
    xp: Namespace,
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    *,
    normalized: int,
    wanted: Mask,
    dtypes: tuple[Dtype, Dtype],
    normalization: Normalization = LAYER_NORM,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx in x's dtype; dgamma and dbeta (*R) in `dtypes`; None where not wanted."""
    at = Rows(xp, x, mean, rstd, normalized, gamma, normalization=normalization)
    dy = at.wide(dy)
    dx = dgamma = dbeta = None
    if wanted[0]:
        dxhat = dy * at.scale(gamma)
        dx = at.rstd * (at.less_mean(dxhat) - at.xhat * at.mean_of(dxhat * at.xhat))
        dx = xp.cast(dx, x.dtype)
    if wanted[1]:
        dgamma = xp.cast(at.over_rows(dy * at.xhat), dtypes[0])
    if wanted[2]:
        dbeta = xp.cast(at.over_rows(dy), dtypes[1])
    return dx, dgamma, dbeta


def statistics_gradient(
    xp: Namespace,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dmean: Tensor | None,
    drstd: Tensor | None,
    *,
    normalized: int,
    normalization: Normalization = LAYER_NORM,
) -> Tensor:
    """What gradients of mean and rstd add to dx, in x's dtype. None stands for a gradient of zero."""
    at = Rows(xp, x, mean, rstd, normalized, dmean, drstd, normalization=normalization)
    dx = xp.zeros_like(at.xhat)
    if dmean is not None:
        dx = dx + dmean / at.N
    if drstd is not None:
        dx = dx - drstd * at.rstd * at.rstd * at.xhat / at.N
    return xp.cast(dx, x.dtype)


def forward_tangents(
    xp: Namespace,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    of_x: Tensor | None,
    of_gamma: Tensor | None,
    of_beta: Tensor | None,
    *,
    normalized: int,
    normalization: Normalization = LAYER_NORM,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Tangents of y, mean and rstd: linear in those of x, gamma and beta. None stands for a tangent of zero.

    There is none of mean where the normalization is not centred.
    """
    at = Rows(xp, x, mean, rstd, normalized, gamma, of_gamma, of_beta, normalization=normalization)
    if of_x is None:
        of_y, of_mean, of_rstd = xp.zeros_like(at.xhat), xp.zeros_like(at.rstd), xp.zeros_like(at.rstd)
    else:
        of_x = at.wide(of_x)
        of_mean, mean_xhat = at.mean_of(of_x), at.mean_of(of_x * at.xhat)
        of_y = at.rstd * ((of_x - of_mean if normalization.centred else of_x) - at.xhat * mean_xhat) * at.scale(gamma)
        of_rstd = -at.rstd * at.rstd * mean_xhat
    if of_gamma is not None:
        of_y = of_y + at.xhat * at.wide(of_gamma)
    if of_beta is not None:
        of_y = of_y + at.wide(of_beta)
    of_mean = xp.cast(of_mean, mean.dtype) if normalization.centred else None
    return xp.cast(of_y, x.dtype), of_mean, xp.cast(of_rstd, rstd.dtype)
