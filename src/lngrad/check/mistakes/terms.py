"""The float64 terms that every formula of a backward is made of, as matrices of rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lngrad.core.reference import backward_terms
from lngrad.testing import Inputs
from lngrad.typing import Array, Shape


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
    dy, xhat, dxhat, rstd = backward_terms(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized=inputs.normalized
    )
    x, mean = np.asarray(inputs.x).astype(np.float64), np.asarray(inputs.mean).astype(np.float64)
    gamma = np.ones(N) if inputs.gamma is None else np.asarray(inputs.gamma).astype(np.float64)
    return Terms(
        dy.reshape(M, N), x.reshape(M, N), xhat.reshape(M, N), dxhat.reshape(M, N), gamma.reshape(1, N),
        mean.reshape(M, 1), rstd.reshape(M, 1), tuple(lead), inputs.normalized_shape,
    )  # fmt: skip
