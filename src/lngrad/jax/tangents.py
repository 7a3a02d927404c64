"""The tangents of the forward as an operation of JAX that is linear in them, and whose transpose is the backward.

JAX derives reverse mode from forward mode by transposing what is linear. So this one operation serves both: evaluated it is
a formula, transposed it is our kernel. jax.custom_vjp would refuse forward mode, jax.custom_jvp would transpose the formula,
and jax.custom_derivatives.linear_call can't be batched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lngrad.jax import formulas
from lngrad.jax.meshes import vary_together

Batches: TypeAlias = "tuple[tuple[bool, ...], ...]"  # for every jax.vmap, outermost first: which arguments it batches
Backward: TypeAlias = Callable[..., tuple[Any, Any, Any]]  # derivatives.backward; it is above this file

_RESIDUALS = 4  # x, mean, rstd, gamma; the rest are tangents
_primitive = jax.extend.core.Primitive("lngrad_layer_norm_tangents")
_primitive.multiple_results = True


def of_forward(
    backward: Backward,
    x: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    gamma: jax.Array | None,
    tangents: tuple[jax.Array | None, jax.Array | None, jax.Array | None],
    *,
    normalized: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tangents of y, mean and rstd.

    Args:
        backward: (dy, x, mean, rstd, gamma, normalized, wanted, dtypes) -> (dx, dgamma, dbeta): the transpose, by x, gamma and
            beta.
        x, mean, rstd, gamma: Of the forward.
        tangents: Of x, gamma and beta; None where zero.
        normalized: How many of x's last dimensions make a row.
    """
    arguments = (x, mean, rstd, gamma, *tangents)
    present = tuple(argument is not None for argument in arguments)
    static = {"normalized": normalized, "present": present, "batches": (), "backward": backward}
    given = vary_together(*(argument for argument in arguments if argument is not None))
    y, of_mean, of_rstd = _primitive.bind(*given, **static)
    return y, of_mean, of_rstd


def _all(present: tuple[bool, ...], given: tuple[Any, ...]) -> list[Any]:
    """The seven arguments, None for the absent ones."""
    arguments = iter(given)
    return [next(arguments) if is_there else None for is_there in present]


def _batched(function: Callable[..., Any], batches: Batches) -> Callable[..., Any]:
    for batched in reversed(batches):
        function = jax.vmap(function, tuple(0 if one else None for one in batched))
    return function


def _evaluate(*given: Any, normalized: int, present: tuple[bool, ...], batches: Batches, backward: Backward) -> Any:
    def tangents(*given: Any) -> Any:
        return formulas.forward_tangents(*_all(present, given), normalized=normalized)

    return list(_batched(tangents, batches)(*given))


def _types(*types: Any, **static: Any) -> Any:
    return jax.make_jaxpr(partial(_evaluate, **static))(*types).out_avals


def _differentiate(primals: tuple[Any, ...], tangents: tuple[Any, ...], **static: Any) -> Any:
    """By the tangents it is linear; by x, mean, rstd and gamma JAX differentiates the formula."""
    residuals = sum(static["present"][:_RESIDUALS])
    results = _primitive.bind(*primals, **static)
    moved = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    totals: list[Any] = [None] * len(results)

    def add(terms: Any) -> None:
        totals[:] = [term if total is None else total + term for total, term in zip(totals, terms, strict=True)]

    if any(moved[residuals:]):
        linear = [ad.instantiate_zeros(tangent) for tangent in tangents[residuals:]]
        add(_primitive.bind(*primals[:residuals], *linear, **static))
    if any(moved[:residuals]):
        at = [k for k in range(residuals) if moved[k]]

        def of_residuals(*chosen: Any) -> Any:
            given = list(primals)
            for k, value in zip(at, chosen, strict=True):
                given[k] = value
            return _evaluate(*given, **static)

        add(jax.jvp(of_residuals, [primals[k] for k in at], [tangents[k] for k in at])[1])
    return results, totals


def _transpose(cotangents: Any, *given: Any, **static: Any) -> Any:
    """Cotangents of the tangents of x, gamma and beta: our backward."""
    present, batches, normalized = static["present"], static["batches"], static["normalized"]
    residuals = sum(present[:_RESIDUALS])
    lin = [ad.is_undefined_primal(argument) for argument in given[residuals:]]
    linear_flags = iter(lin)
    wanted = tuple(is_there and next(linear_flags) for is_there in present[_RESIDUALS:])
    types = {name: argument.aval for name, argument in zip(_names(present[_RESIDUALS:]), given[residuals:], strict=True)
             if ad.is_undefined_primal(argument)}  # fmt: skip
    nonzero = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]

    def pull(*arguments: Any) -> Any:
        x, mean, rstd, gamma = _all(present[:_RESIDUALS], arguments[:residuals])
        dy, dmean, drstd = _all(tuple(nonzero), arguments[residuals:])
        dx = dgamma = dbeta = None
        if dy is not None:
            if "beta" in types and formulas.accumulator(x, gamma, types["beta"]) != formulas.accumulator(x, gamma):
                ones = (
                    jnp.ones(x.shape[x.ndim - normalized :]) if gamma is None else gamma
                )  # so that dbeta is summed as wide
                gamma = ones.astype(types["beta"].dtype)
            dtypes = tuple(types[name].dtype if name in types else x.dtype for name in ("gamma", "beta"))
            dx, dgamma, dbeta = static["backward"](dy, x, mean, rstd, gamma, normalized, wanted, dtypes)
        if wanted[0] and not (dmean is None and drstd is None):
            more = formulas.statistics_gradient(x, mean, rstd, dmean, drstd, normalized=normalized)
            dx = more if dx is None else dx + more
        return tuple(grad for grad, want in zip((dx, dgamma, dbeta), wanted, strict=True) if want)

    inner = [(*batched[:residuals], *(True,) * sum(nonzero)) for batched in batches]
    arrays = [cotangent for cotangent, there in zip(cotangents, nonzero, strict=True) if there]
    grads = iter(_batched(pull, tuple(inner))(*given[:residuals], *arrays))
    results: list[Any] = [None] * residuals
    for k, is_linear in enumerate(lin):
        grad = next(grads) if is_linear else None
        if grad is not None:
            shared = tuple(level for level, batched in enumerate(batches) if not batched[residuals + k])
            grad = grad.sum(shared).astype(given[residuals + k].aval.dtype) if shared else grad
        results.append(grad)
    return results


def _names(present: tuple[bool, ...]) -> list[str]:
    return [name for name, is_there in zip(("x", "gamma", "beta"), present, strict=True) if is_there]


def _batch(arguments: Any, dims: Any, **static: Any) -> Any:
    """More rows where all that has rows is batched; else as many calls."""
    moved = [
        argument if dim is None else jnp.moveaxis(argument, dim, 0)
        for argument, dim in zip(arguments, dims, strict=True)
    ]
    batched = tuple(dim is not None for dim in dims)
    return _primitive.bind(*moved, **{**static, "batches": (batched, *static["batches"])}), (0, 0, 0)


_primitive.def_impl(lambda *given, **static: jax.jit(partial(_evaluate, **static))(*given))
_primitive.def_abstract_eval(_types)
ad.primitive_jvps[_primitive] = _differentiate
ad.primitive_transposes[_primitive] = _transpose
batching.primitive_batchers[_primitive] = _batch
mlir.register_lowering(_primitive, mlir.lower_fun(_evaluate, multiple_results=True))
