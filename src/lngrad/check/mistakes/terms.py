"""The float64 terms that every formula of a backward is made of, as matrices of rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.testing import Inputs
from lngrad.typing import Array, Shape

__all__ = ["Terms", "terms_of"]


@dataclass(frozen=True)
class Terms:
    """What the gradients of a block of rows are computed from.

    Attributes:
        dy, x, xhat, dxhat: (rows, N); dxhat is dy·gamma.
        gamma: (1, N), ones where the case has none.
        mean, rstd: (rows, 1).
        lead, normalized: The shape of x before it was flattened.
    """

    dy: Array
    x: Array
    xhat: Array
    dxhat: Array
    gamma: Array
    mean: Array
    rstd: Array
    lead: Shape
    normalized: Shape

    @property
    def M(self) -> int:
        return len(self.dy)

    @property
    def N(self) -> int:
        return int(self.dy.shape[1])


def terms_of(inputs: Inputs) -> Terms:
    """The terms of a backward's inputs."""
    N = max(1, math.prod(inputs.normalized_shape))
    lead = inputs.x.shape[: inputs.x.ndim - inputs.normalized]
    M = math.prod(lead)

    def wide(array: Any, *shape: int) -> Array:
        return np.asarray(array).astype(np.float64).reshape(shape)

    dy, x = wide(inputs.dy, M, N), wide(inputs.x, M, N)
    mean, rstd = wide(inputs.mean, M, 1), wide(inputs.rstd, M, 1)
    gamma = np.ones((1, N)) if inputs.gamma is None else wide(inputs.gamma, 1, N)
    return Terms(dy, x, (x - mean) * rstd, dy * gamma, gamma, mean, rstd, tuple(lead), inputs.normalized_shape)
