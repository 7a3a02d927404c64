"""Derivatives of the two operations in reverse mode, to any order: operations again, or formulas.

custom_vjp tells both rules which arguments a gradient is asked of, and which cotangents are zero: nothing else is computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero

from lngrad import jax_formulas, jax_ops

__all__ = ["backward", "forward"]


@jax.tree_util.register_static
class _Asked(NamedTuple):
    """Which of x, gamma and beta a gradient is asked of, and the dtypes of those of gamma and beta."""

    wanted: tuple[bool, bool, bool]
    dtypes: tuple[np.dtype[Any], np.dtype[Any]]


def _value(primal: Any) -> Any:
    return None if primal is None else primal.value


def _nonzero(cotangent: Any) -> Any:
    """The cotangent, or None if it is known to be zero."""
    return None if isinstance(cotangent, SymbolicZero) else cotangent


# --- The forward ----------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def forward(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    """y, mean and rstd. x: (*A, *R), R of `normalized` dimensions; gamma, beta: (*R) or None."""
    return jax_ops.forward(x, gamma, beta, normalized=normalized, eps=eps)  # type: ignore[no-any-return]


def _forward_save(x: Any, gamma: Any, beta: Any, normalized: int, eps: float) -> tuple[Any, Any]:
    wanted = tuple(primal is not None and bool(primal.perturbed) for primal in (x, gamma, beta))
    dtypes = tuple(x.value.dtype if primal is None else primal.value.dtype for primal in (gamma, beta))
    y, mean, rstd = forward(x.value, _value(gamma), _value(beta), normalized, eps)
    return (y, mean, rstd), (x.value, mean, rstd, _value(gamma), _Asked(wanted, dtypes))  # type: ignore[arg-type]


def _forward_gradient(normalized: int, eps: float, saved: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    x, mean, rstd, gamma, (wanted, dtypes) = saved
    dy, dmean, drstd = map(_nonzero, cotangents)
    dx = dgamma = dbeta = None
    if dy is not None:
        dx, dgamma, dbeta = backward(dy, x, mean, rstd, gamma, normalized, wanted, dtypes)
    if wanted[0] and not (dmean is None and drstd is None):
        more = jax_formulas.statistics_gradient(x, mean, rstd, dmean, drstd, normalized=normalized)
        dx = more if dx is None else dx + more
    return dx, dgamma, dbeta


forward.defvjp(_forward_save, _forward_gradient, symbolic_zeros=True)


# --- The backward ---------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    normalized: int,
    wanted: tuple[bool, bool, bool],
    dtypes: tuple[Any, Any],
) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; the latter two in `dtypes`."""
    return jax_ops.backward(  # type: ignore[no-any-return]
        dy, x, mean, rstd, gamma, normalized=normalized, wanted=wanted, dtypes=dtypes
    )


def _backward_save(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized: int, wanted: Any, dtypes: Any
) -> tuple[Any, Any]:
    primals = tuple(map(_value, (dy, x, mean, rstd, gamma)))
    return backward(*primals, normalized, wanted, dtypes), primals


def _backward_gradient(normalized: int, wanted: Any, dtypes: Any, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    return jax_formulas.backward_gradients(*saved, *map(_nonzero, cotangents), normalized=normalized)


backward.defvjp(_backward_save, _backward_gradient, symbolic_zeros=True)
