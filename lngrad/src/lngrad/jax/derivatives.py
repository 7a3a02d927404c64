"""Derivatives of the operations, in forward and reverse mode and to any order.

The forward's tangents are an operation of JAX's own that is linear in them and whose transpose is the backward; the backward's
are JAX's derivative of its formula. JAX says which tangents are zero, and transposes what a gradient is wanted of: nothing else
is computed. Both operations are jitted, since eager jax.shard_map takes no custom derivatives otherwise, and eager calls are
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.extend
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from lngrad.core.problem import Normalization
from lngrad.jax import operators
from lngrad.jax.meshes import vary_together
from lngrad.jax.operators import AxisName, Four, Gated

Three = tuple[Any, Any, Any]  # arrays, or None


@partial(jax.custom_jvp, nondiff_argnums=(4, 5, 6, 7))
def _forward(
    x: Any,
    gamma: Any,
    beta: Any,
    residual: Any,
    normalized: int,
    eps: float,
    normalization: Normalization,
    axis: AxisName,
) -> Four:
    """y, mean, rstd and total: mean is None where it is not centred, total without a residual.

    x, residual: (*A, *R), R of `normalized` dimensions; gamma, beta: (*R) or None. axis: That of the mesh which rows are cut
    along, R being of a slice; None if they are whole.
    """
    static: dict[str, Any] = {"normalized": normalized, "eps": eps, "normalization": normalization, "axis": axis}
    return operators.forward(x, gamma, beta, residual, **static)


forward = jax.jit(_forward, static_argnums=(4, 5, 6, 7), inline=True)


@partial(_forward.defjvp, symbolic_zeros=True)
def _forward_tangents(
    normalized: int, eps: float, normalization: Normalization, axis: AxisName, primals: Four, moved: Four
) -> tuple[Four, Four]:
    x, gamma, _, residual = primals
    results = forward(*primals, normalized, eps, normalization, axis)
    _, mean, rstd, total = results
    of_x, of_gamma, of_beta, of_residual = (None if isinstance(one, SymbolicZero) else one for one in moved)
    if total is not None and not (of_x is None and of_residual is None):
        both = (of_x, x), (of_residual, residual)
        of_both = (jnp.zeros_like(one) if tangent is None else tangent for tangent, one in both)
        of_x = operators.total_formula(*of_both, normalization=normalization)
    dtype, x = x.dtype, x if total is None else total
    static: dict[str, Any] = {"normalized": normalized, "normalization": normalization, "axis": axis, "dtype_y": dtype}
    tangents = of_x, of_gamma, of_beta
    return results, tangents_of_forward(x, mean, rstd, gamma, tangents, with_total=total is not None, **static)


_STATIC = ("normalized", "wanted", "dtypes", "normalization", "axis")


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _by_formula(kernel: Callable[..., Any], formula: Callable[..., Any], static: Any, *given: Any) -> Any:
    """What a kernel computes, and a formula where JAX differentiates it; static: what both take by name, as pairs."""
    return kernel(*given, **dict(static))


@partial(_by_formula.defjvp, symbolic_zeros=True)
def _tangents_by_formula(kernel: Callable[..., Any], formula: Callable[..., Any], static: Any, *both: Any) -> Any:
    primals, moved = both
    at = [k for k, tangent in enumerate(moved) if tangent is not None and not isinstance(tangent, SymbolicZero)]
    results = _by_formula(kernel, formula, static, *primals)
    return results, _tangents_by(partial(formula, **dict(static)), primals, moved, at)


def _tangents_by(formula: Callable[..., Any], primals: Sequence[Any], moved: Sequence[Any], at: list[int]) -> Any:
    """Tangents of a formula, by those of its arguments at some places alone."""

    def of_chosen(*chosen: Any) -> Any:
        given = list(primals)
        for k, value in zip(at, chosen, strict=True):
            given[k] = value
        return formula(*given)

    return jax.jvp(of_chosen, [primals[k] for k in at], [moved[k] for k in at])[1]


def _backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dtotal: Any, *static: Any) -> Three:
    """dx, dgamma and dbeta, None where not wanted; the latter two in `dtypes`. x is the total where there is one."""
    facts = tuple(zip(_STATIC, static, strict=True))
    given = dy, x, mean, rstd, gamma, dtotal
    return _by_formula(operators.backward, operators.backward_formula, facts, *given)  # type: ignore[no-any-return]


backward = jax.jit(_backward, static_argnums=(6, 7, 8, 9, 10), inline=True)


# --- The forward's tangents -----------------------------------------------------------------------------------------
#
# JAX derives reverse mode from forward mode by transposing what is linear. So this one operation serves both: evaluated it is
# a formula, transposed it is our kernel. jax.custom_vjp would refuse forward mode, jax.custom_jvp would transpose the formula,
# and jax.custom_derivatives.linear_call can't be batched.

Batches: TypeAlias = "tuple[tuple[bool, ...], ...]"  # for every jax.vmap, outermost first: which arguments it batches

_RESIDUALS = 4  # x, mean, rstd, gamma; the rest are tangents
_primitive = jax.extend.core.Primitive("lngrad_layer_norm_tangents")
_primitive.multiple_results = True


def tangents_of_forward(
    x: jax.Array,
    mean: jax.Array | None,
    rstd: jax.Array,
    gamma: jax.Array | None,
    tangents: Three,
    *,
    normalized: int,
    normalization: Normalization,
    axis: AxisName,
    dtype_y: Any,
    with_total: bool,
) -> Four:
    """Tangents of y, mean, rstd and total; the second is None without a mean, the last unless it is asked for.

    Args:
        x, mean, rstd, gamma: Of the forward; x is its total if there is one.
        tangents: Of x, gamma and beta; None where zero.
        normalized: How many of x's last dimensions make a row.
        normalization: Which one it is.
        axis: That which rows are cut along, or None.
        dtype_y: Of y's tangent.
        with_total: Whether x's tangent is a result too: transposed, dtotal is added to dx before that is rounded.
    """
    arguments = (x, mean, rstd, gamma, *tangents)
    present = tuple(argument is not None for argument in arguments)
    static = {"normalized": normalized, "normalization": normalization, "axis": axis, "dtype_y": dtype_y}
    static["with_total"] = with_total
    given = vary_together(*(argument for argument in arguments if argument is not None))
    results = _primitive.bind(*given, **static, present=present, batches=())
    y, of_mean, of_rstd, of_total = _all(_are_results(present, with_total), results)
    return y, of_mean, of_rstd, of_total


def _are_results(present: tuple[bool, ...], with_total: bool) -> tuple[bool, ...]:
    """Which tangents there are, of y, mean, rstd and total."""
    return True, present[1], True, with_total


def _all(present: tuple[bool, ...], given: Sequence[Any]) -> list[Any]:
    """What is given, with None for what is absent."""
    arguments = iter(given)
    return [next(arguments) if is_there else None for is_there in present]


def _batched(function: Callable[..., Any], batches: Batches) -> Callable[..., Any]:
    for batched in reversed(batches):
        function = jax.vmap(function, tuple(0 if one else None for one in batched))
    return function


def _evaluate(*given: Any, with_total: bool, present: tuple[bool, ...], batches: Batches, **static: Any) -> Any:
    def tangents(*given: Any) -> Any:
        arguments = _all(present, given)
        x, of_x = arguments[0], arguments[_RESIDUALS]
        of_total = [jnp.zeros_like(x) if of_x is None else of_x] if with_total else []
        results = operators.forward_tangents(*arguments, **static)
        return [one for one in results if one is not None] + of_total

    return list(_batched(tangents, batches)(*given))


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
        add(_tangents_by(partial(_evaluate, **static), primals, tangents, at))
    return results, totals


def _transpose(cotangents: Any, *given: Any, **static: Any) -> Any:
    """Cotangents of the tangents of x, gamma and beta: our backward."""
    present, batches, normalized = static["present"], static["batches"], static["normalized"]
    normalization, axis = static["normalization"], static["axis"]
    are_results = iter(_are_results(present, static["with_total"]))
    residuals = sum(present[:_RESIDUALS])
    lin = [ad.is_undefined_primal(argument) for argument in given[residuals:]]
    linear_flags = iter(lin)
    wanted = tuple(is_there and next(linear_flags) for is_there in present[_RESIDUALS:])
    names = [name for name, is_there in zip(("x", "gamma", "beta"), present[_RESIDUALS:], strict=True) if is_there]
    types = {name: one.aval for name, one, is_linear in zip(names, given[residuals:], lin, strict=True) if is_linear}
    there = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
    there_are = iter(there)
    nonzero = tuple(is_result and next(there_are) for is_result in are_results)

    def pull(*arguments: Any) -> Any:
        x, mean, rstd, gamma = _all(present[:_RESIDUALS], arguments[:residuals])
        dy, dmean, drstd, dtotal = _all(nonzero, arguments[residuals:])
        dx = dtotal if wanted[0] else None
        dgamma = dbeta = None
        if dy is not None:
            if dx is None:
                dy = dy.astype(x.dtype)  # beside a wider total that nobody used
            if "beta" in types and operators.accumulator(x, gamma, types["beta"]) != operators.accumulator(x, gamma):
                ones = jnp.ones(x.shape[x.ndim - normalized :]) if gamma is None else gamma
                gamma = ones.astype(types["beta"].dtype)  # so that dbeta is summed as wide
            dtypes = tuple(types[name].dtype if name in types else x.dtype for name in ("gamma", "beta"))
            dx, dgamma, dbeta = backward(dy, x, mean, rstd, gamma, dx, normalized, wanted, dtypes, normalization, axis)
        if wanted[0] and not (dmean is None and drstd is None):
            more = operators.statistics_gradient(x, mean, rstd, dmean, drstd, normalized=normalized, axis=axis)
            dx = more if dx is None else dx + more
        return tuple(grad for grad, want in zip((dx, dgamma, dbeta), wanted, strict=True) if want)

    inner = [(*batched[:residuals], *(True,) * sum(nonzero)) for batched in batches]
    arrays = [cotangent for cotangent, is_there in zip(cotangents, there, strict=True) if is_there]
    grads = iter(_batched(pull, tuple(inner))(*given[:residuals], *arrays))
    results: list[Any] = [None] * residuals
    for k, is_linear in enumerate(lin):
        grad = next(grads) if is_linear else None
        if grad is not None:
            shared = tuple(level for level, batched in enumerate(batches) if not batched[residuals + k])
            grad = grad.sum(shared).astype(given[residuals + k].aval.dtype) if shared else grad
        results.append(grad)
    return results


def _batch(arguments: Any, dims: Any, **static: Any) -> Any:
    """More rows where all that has rows is batched; else as many calls."""
    moved = [
        argument if dim is None else jnp.moveaxis(argument, dim, 0)
        for argument, dim in zip(arguments, dims, strict=True)
    ]
    batched = tuple(dim is not None for dim in dims)
    results = _primitive.bind(*moved, **{**static, "batches": (batched, *static["batches"])})
    return results, (0,) * len(results)


_primitive.def_impl(lambda *given, **static: jax.jit(partial(_evaluate, **static))(*given))
_primitive.def_abstract_eval(lambda *types, **static: jax.make_jaxpr(partial(_evaluate, **static))(*types).out_avals)
ad.primitive_jvps[_primitive] = _differentiate
ad.primitive_transposes[_primitive] = _transpose
batching.primitive_batchers[_primitive] = _batch
mlir.register_lowering(_primitive, mlir.lower_fun(_evaluate, multiple_results=True))


# --- With a gate: our backward in reverse mode; there is no forward mode ----------------------------------------------


def _save_gated(x: Any, gamma: Any, gate: Any, static: Gated) -> Any:
    facts = (("static", static),)
    y, rstd, _ = _by_formula(operators.gated_forward, operators.gated_formula, facts, x, gamma, gate)
    return y, (x, rstd, gamma, gate)


def _pull_gated(static: Gated, saved: Any, dy: Any) -> Any:
    facts = (("static", static),)
    return _by_formula(operators.gated_backward, operators.gated_gradients_formula, facts, dy, *saved)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gated(x: Any, gamma: Any, gate: Any, static: Gated) -> Any:
    return _save_gated(x, gamma, gate, static)[0]


_gated.defvjp(_save_gated, _pull_gated)
gated = jax.jit(_gated, static_argnums=(3,), inline=True)
