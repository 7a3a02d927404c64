"""Derivatives of the two operations, in forward and reverse mode and to any order.

The forward's tangents are an operation whose transpose is the backward; the backward's are JAX's own derivative of its formula.
JAX says which tangents are zero, and transposes what a gradient is wanted of: nothing else is computed. Both operations are
jitted, since eager jax.shard_map takes no custom derivatives otherwise, and eager calls are faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from lngrad.jax import formulas, ops, tangents
from lngrad.typing import Dtype, Mask

Three = tuple[Any, Any, Any]  # arrays, or None


def _nonzero(tangent: Any) -> Any:
    """A tangent, or None if it is known to be zero."""
    return None if isinstance(tangent, SymbolicZero) else tangent


@partial(jax.jit, static_argnums=(3, 4), inline=True)
def forward(
    x: jax.Array, gamma: jax.Array | None, beta: jax.Array | None, normalized: int, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """y, mean and rstd. x: (*A, *R), R of `normalized` dimensions; gamma, beta: (*R) or None."""
    return _forward(x, gamma, beta, normalized, eps)  # type: ignore[no-any-return]


@partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _forward(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> Three:
    return ops.forward(x, gamma, beta, normalized=normalized, eps=eps)


@partial(_forward.defjvp, symbolic_zeros=True)
def _forward_tangents(normalized: int, eps: float, primals: Three, moved: Three) -> tuple[Three, Three]:
    x, gamma, _ = primals
    y, mean, rstd = forward(*primals, normalized, eps)
    of_inputs = tuple(map(_nonzero, moved))
    return (y, mean, rstd), tangents.of_forward(backward, x, mean, rstd, gamma, of_inputs, normalized=normalized)


@partial(jax.jit, static_argnums=(5, 6, 7), inline=True)
def backward(
    dy: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    gamma: jax.Array | None,
    normalized: int,
    wanted: Mask,
    dtypes: tuple[Dtype, Dtype],
) -> Three:
    """dx, dgamma and dbeta, None where not wanted; the latter two in `dtypes`."""
    return _backward(dy, x, mean, rstd, gamma, normalized, wanted, dtypes)  # type: ignore[no-any-return]


@partial(jax.custom_jvp, nondiff_argnums=(5, 6, 7))
def _backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized: int, wanted: Any, dtypes: Any) -> Three:
    return ops.backward(dy, x, mean, rstd, gamma, normalized=normalized, wanted=wanted, dtypes=dtypes)


@partial(_backward.defjvp, symbolic_zeros=True)
def _backward_tangents(normalized: int, wanted: Any, dtypes: Any, primals: Any, moved: Any) -> tuple[Three, Three]:
    at = [k for k, tangent in enumerate(moved) if tangent is not None and not isinstance(tangent, SymbolicZero)]

    def of_chosen(*chosen: Any) -> Three:
        given = list(primals)
        for k, value in zip(at, chosen, strict=True):
            given[k] = value
        return formulas.backward(*given, normalized=normalized, wanted=wanted, dtypes=dtypes)

    results = backward(*primals, normalized, wanted, dtypes)
    return results, jax.jvp(of_chosen, [primals[k] for k in at], [moved[k] for k in at])[1]
