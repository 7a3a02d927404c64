"""Derivatives of the two operations in reverse mode, to any order: operations again, or formulas.

custom_vjp tells both rules which arguments a gradient is asked of, and which cotangents are zero: nothing else is computed.
Both are jitted, since eager jax.shard_map takes no such custom_vjp otherwise, and eager calls are faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

import jax
from lngrad.jax import formulas, ops

__all__ = ["backward", "forward"]


# What the rule of the backward has to know beside arrays lies in the shapes and dtypes of two empty arrays. A static node in
# the tree of residuals would be natural, but jax keeps one such tree for all uses of a jitted function: a gradient by x and
# gamma would meet the tree of the gradient by x alone that was traced after it, and silently be zero by gamma.


def _note(wanted: tuple[bool, ...], x: Any, gamma: Any, beta: Any) -> tuple[Any, Any]:
    bits = sum(1 << k for k, want in enumerate(wanted) if want)
    gamma, beta = (x if parameter is None else parameter for parameter in (gamma, beta))
    return jnp.zeros((0, bits), gamma.dtype), jnp.zeros(0, beta.dtype)


def _read(note: tuple[Any, Any]) -> tuple[tuple[bool, bool, bool], tuple[Any, Any]]:
    """Which of x, gamma and beta a gradient is asked of, and the dtypes of those of gamma and beta."""
    of_gamma, of_beta = note
    bits = of_gamma.shape[1]
    return (bool(bits & 1), bool(bits & 2), bool(bits & 4)), (of_gamma.dtype, of_beta.dtype)


def _value(primal: Any) -> Any:
    return None if primal is None else primal.value


def _nonzero(cotangent: Any) -> Any:
    """The cotangent, or None if it is known to be zero."""
    return None if isinstance(cotangent, SymbolicZero) else cotangent


# --- The forward ----------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(3, 4), inline=True)
def forward(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    """y, mean and rstd. x: (*A, *R), R of `normalized` dimensions; gamma, beta: (*R) or None."""
    return _forward(x, gamma, beta, normalized, eps)  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _forward(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    return ops.forward(x, gamma, beta, normalized=normalized, eps=eps)


def _forward_save(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> tuple[Any, Any]:
    wanted = tuple(primal is not None and bool(primal.perturbed) for primal in (x, gamma, beta))
    x, gamma, beta = map(_value, (x, gamma, beta))
    y, mean, rstd = forward(x, gamma, beta, normalized, eps)
    return (y, mean, rstd), (x, mean, rstd, gamma, _note(wanted, x, gamma, beta))


def _forward_gradient(normalized: int, eps: float, saved: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    x, mean, rstd, gamma, note = saved
    wanted, dtypes = _read(note)
    dy, dmean, drstd = map(_nonzero, cotangents)
    dx = dgamma = dbeta = None
    if dy is not None:
        dx, dgamma, dbeta = backward(dy, x, mean, rstd, gamma, normalized, wanted, dtypes)
    if wanted[0] and not (dmean is None and drstd is None):
        more = formulas.statistics_gradient(x, mean, rstd, dmean, drstd, normalized=normalized)
        dx = more if dx is None else dx + more
    return dx, dgamma, dbeta


_forward.defvjp(_forward_save, _forward_gradient, symbolic_zeros=True)


# --- The backward ---------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(5, 6, 7), inline=True)
def backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    normalized: int,
    wanted: tuple[bool, bool, bool],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; the latter two in `dtypes`."""
    return _backward(dy, x, mean, rstd, gamma, normalized, wanted, dtypes)  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _backward(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized: int, wanted: Any, dtypes: Any
) -> tuple[Any, Any, Any]:
    return ops.backward(dy, x, mean, rstd, gamma, normalized=normalized, wanted=wanted, dtypes=dtypes)


def _backward_save(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized: int, wanted: Any, dtypes: Any
) -> tuple[Any, Any]:
    primals = tuple(map(_value, (dy, x, mean, rstd, gamma)))
    return backward(*primals, normalized, wanted, dtypes), primals


def _backward_gradient(normalized: int, wanted: Any, dtypes: Any, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    return formulas.backward_gradients(*saved, *map(_nonzero, cotangents), normalized=normalized)


_backward.defvjp(_backward_save, _backward_gradient, symbolic_zeros=True)
