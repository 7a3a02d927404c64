"""layer_norm and its backward: JAX's arguments turned into facts, and checked when a call is traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lngrad.core.arrays import ArraySpec, require_memory
from lngrad.core.problem import Grads, Problem
from lngrad.errors import DtypeError

try:
    import jax
    import jax.numpy as jnp
    from jax.typing import ArrayLike
except ImportError as reason:
    raise ImportError("lngrad.jax: expected jax 0.10 or later, got none: pip install 'lngrad[jax]'") from reason
if not hasattr(jax.sharding, "ManualAxisType"):
    raise ImportError(f"lngrad.jax: expected jax 0.10 or later, got {jax.__version__}: pip install 'lngrad[jax]'")

from lngrad.jax import derivatives, operators
from lngrad.jax.meshes import on_shards, refuse_sharded, vary_together


def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    eps: float | jax.Array = 1e-5,
    normalized_shape: int | Sequence[int] | None = None,
) -> jax.Array:
    """Layer normalization: y = (x - mean)·rstd·gamma + beta, with rstd = 1/sqrt(variance + eps).

    It can be jitted, batched, rematerialized, scanned over, sharded with jax.shard_map, and differentiated in forward and
    reverse mode to any order.

    Args:
        x: (*A, *R), 1 to 8 dimensions, float16, bfloat16, float32 or float64.
        gamma, beta: (*R) in any of these dtypes. One in float64, or x, has the call computed in it. None: 1 and 0.
        eps: Added to the biased variance of a row. A number runs our kernels. A traced value of no dimensions is computed by
            a formula of jax.numpy, and can be differentiated too.
        normalized_shape: R. None: gamma's shape, or the last axis.

    Returns:
        (*A, *R) in x's dtype. On the CPU it and its gradients have the bits of lngrad.layer_norm and
        lngrad.layer_norm_backward. Gradients come in the dtype of what they belong to.

    Raises:
        ShapeError, DtypeError: An argument breaks a rule; both have their usual Python base, ValueError and TypeError. They
            are raised when the call is traced.
    """
    x, gamma, beta = _arrays(x=x, gamma=gamma, beta=beta)
    problem, _ = Problem.forward(_facts(x), _facts(gamma), _facts(beta), normalized_shape)
    normalized = len(problem.normalized_shape)
    if not isinstance(eps, jax.core.Tracer):
        number = _number(eps)
        return on_shards(
            lambda *shards: derivatives.forward(*shards, normalized, number)[0], normalized, x, gamma, beta
        )
    if eps.ndim or not jnp.issubdtype(eps.dtype, jnp.floating):
        raise DtypeError(f"eps: expected a float of no dimensions, got {eps.dtype} of shape {eps.shape}")
    return operators.forward_formula(
        x, gamma, beta, normalized=normalized, eps=eps.astype(operators.accumulator(x, gamma, beta))
    )[0]


def _number(eps: float) -> float:
    """A number of Python's, NumPy's or JAX's."""
    try:
        return float(eps)
    except (TypeError, ValueError):
        raise DtypeError(f"eps: expected a number, got {type(eps).__name__}") from None


def layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> Grads:
    """lngrad.layer_norm_backward for JAX: whatever layer_norm can be, this can be too, but for explicitly sharded arrays.

    Go into jax.shard_map with those; gradients of layer_norm itself take them as they are.

    Args:
        dy, x: (*A, *R), the same shape and dtype.
        mean, rstd: One element per row.
        gamma: (*R) or None.
        normalized_shape: R. None: gamma's shape, or the last axis.
        output_mask: Which of dx, dgamma, dbeta are wanted; the others are None.
    """
    dy, x, mean, rstd, gamma = _arrays(dy=dy, x=x, mean=mean, rstd=rstd, gamma=gamma)
    facts = (_facts(dy), _facts(x), _facts(mean), _facts(rstd), _facts(gamma))
    problem, _ = Problem.backward(*facts, normalized_shape, output_mask)
    dtype = (x if gamma is None else gamma).dtype
    normalized = len(problem.normalized_shape)
    refuse_sharded("dy, x, mean, rstd, gamma", dy, x, mean, rstd, gamma)
    arrays = vary_together(dy, x, mean, rstd, gamma)
    return Grads(*derivatives.backward(*arrays, normalized, problem.wanted, (dtype, dtype)))


def _arrays(**arrays: Any) -> Iterator[Any]:
    """JAX's arrays; what comes from elsewhere is checked for memory first, because JAX would read it as it is."""
    for name, array in arrays.items():
        require_memory(name, array)
        yield None if array is None else jnp.asarray(array)


def _facts(array: jax.Array | None) -> ArraySpec | None:
    if array is None:
        return None
    return ArraySpec(array.shape, array.dtype.name, (0,) * array.ndim, "cpu", "numpy")
