"""Derivatives of the operations, in forward and reverse mode and to any order.

The forward's tangents are an operation of JAX's own that is linear in them and whose transpose is the backward; the backward's
are JAX's derivative of its formula. JAX says which tangents are zero, and transposes what a gradient is wanted of: nothing else
is computed. Both operations are jitted, since eager jax.shard_map takes no custom derivatives otherwise, and eager calls are
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    of_x, of_gamma, of_beta, of_residual = (None if isinstance(tangent, SymbolicZero) else tangent for tangent in moved)
    if total is not None and not (of_x is None and of_residual is None):
        summands = (of_x, x), (of_residual, residual)
        of_summands = (jnp.zeros_like(array) if tangent is None else tangent for tangent, array in summands)
        of_x = operators.total_formula(*of_summands, normalization=normalization)
    dtype, x = x.dtype, x if total is None else total
    static: dict[str, Any] = {"normalized": normalized, "normalization": normalization, "axis": axis, "dtype_y": dtype}
    tangents = of_x, of_gamma, of_beta
    return results, tangents_of_forward(x, mean, rstd, gamma, tangents, with_total=total is not None, **static)


_STATIC = ("normalized", "wanted", "dtypes", "normalization", "axis")


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _by_formula(kernel: Callable[..., Any], formula: Callable[..., Any], static: Any, *arrays: Any) -> Any:
    """A kernel's results, and a formula where JAX differentiates it; static: what both take by name, as pairs."""
    return kernel(*arrays, **dict(static))


@partial(_by_formula.defjvp, symbolic_zeros=True)
def _tangents_by_formula(kernel: Callable[..., Any], formula: Callable[..., Any], static: Any, *both: Any) -> Any:
    primals, moved = both
    at = [k for k, tangent in enumerate(moved) if tangent is not None and not isinstance(tangent, SymbolicZero)]
    results = _by_formula(kernel, formula, static, *primals)
    return results, _tangents_by(partial(formula, **dict(static)), primals, moved, at)


def _tangents_by(formula: Callable[..., Any], primals: Sequence[Any], moved: Sequence[Any], at: list[int]) -> Any:
    """Tangents of a formula, by those of its arguments at some places alone."""

    def of_chosen(*chosen: Any) -> Any:
        arguments = list(primals)
        for k, value in zip(at, chosen, strict=True):
            arguments[k] = value
        return formula(*arguments)

    return jax.jvp(of_chosen, [primals[k] for k in at], [moved[k] for k in at])[1]


def _backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dtotal: Any, *static: Any) -> Three:
    """dx, dgamma and dbeta, None where not wanted; the latter two in `dtypes`. x is the total where there is one."""
    facts = tuple(zip(_STATIC, static, strict=True))
    arrays = dy, x, mean, rstd, gamma, dtotal
    return _by_formula(operators.backward, operators.backward_formula, facts, *arrays)  # type: ignore[no-any-return]


backward = jax.jit(_backward, static_argnums=(6, 7, 8, 9, 10), inline=True)


# --- The forward's tangents -----------------------------------------------------------------------------------------
#
# JAX derives reverse mode from forward mode by transposing what is linear. So this one operation serves both: evaluated it is
# a formula, transposed it is our kernel. jax.custom_vjp would refuse forward mode, jax.custom_jvp would transpose the formula,
# and jax.custom_derivatives.linear_call can't be batched.

Batches: TypeAlias = "tuple[tuple[bool, ...], ...]"  # for every jax.vmap, outermost first: which arguments it batches

# Arguments of the operation, by name, as far as they are present; it is linear in the tangents.
_PRIMALS, _TANGENTS = ("x", "mean", "rstd", "gamma"), ("of_x", "of_gamma", "of_beta")
_RESULTS = ("y", "mean", "rstd", "total")
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
    arguments = zip((*_PRIMALS, *_TANGENTS), (x, mean, rstd, gamma, *tangents), strict=True)
    present = {name: array for name, array in arguments if array is not None}
    names = tuple(present)
    results = _primitive.bind(
        *vary_together(*present.values()), names=names, with_total=with_total, batches=(), normalized=normalized,
        normalization=normalization, axis=axis, dtype_y=dtype_y,
    )  # fmt: skip
    of_y, of_mean, of_rstd, of_total = _in_order(_RESULTS, _named(_results_of(names, with_total), results))
    return of_y, of_mean, of_rstd, of_total


def _results_of(names: tuple[str, ...], with_total: bool) -> list[str]:
    """The results whose tangents the operation has."""
    absent = {"mean"} - {*names} | ({"total"} if not with_total else set())
    return [name for name in _RESULTS if name not in absent]


def _named(names: Iterable[str], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


def _in_order(names: Iterable[str], named: dict[str, Any]) -> list[Any]:
    """Values by their names; None for an absent one."""
    return [named.get(name) for name in names]


def _batched(function: Callable[..., Any], batches: Batches) -> Callable[..., Any]:
    for batched in reversed(batches):
        function = jax.vmap(function, tuple(0 if is_batched else None for is_batched in batched))
    return function


def _evaluate(*arrays: Any, with_total: bool, names: tuple[str, ...], batches: Batches, **static: Any) -> Any:
    def tangents(*arrays: Any) -> Any:
        named = _named(names, arrays)
        results = operators.forward_tangents(*_in_order((*_PRIMALS, *_TANGENTS), named), **static)
        of_total = [named.get("of_x", jnp.zeros_like(named["x"]))] if with_total else []
        return [result for result in results if result is not None] + of_total

    return list(_batched(tangents, batches)(*arrays))


def _differentiate(primals: tuple[Any, ...], tangents: tuple[Any, ...], **static: Any) -> Any:
    """By the tangents it is linear; by x, mean, rstd and gamma JAX differentiates the formula."""
    split = sum(name in _PRIMALS for name in static["names"])
    results = _primitive.bind(*primals, **static)
    moved = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    totals: list[Any] = [None] * len(results)

    def add(terms: Any) -> None:
        totals[:] = [term if total is None else total + term for total, term in zip(totals, terms, strict=True)]

    if any(moved[split:]):
        linear = [ad.instantiate_zeros(tangent) for tangent in tangents[split:]]
        add(_primitive.bind(*primals[:split], *linear, **static))
    if any(moved[:split]):
        at = [k for k in range(split) if moved[k]]
        add(_tangents_by(partial(_evaluate, **static), primals, tangents, at))
    return results, totals


def _transpose(
    cotangents: Any, *arguments: Any, names: tuple[str, ...], with_total: bool, batches: Batches, normalized: int,
    normalization: Normalization, axis: AxisName, dtype_y: Any,
) -> Any:  # fmt: skip
    """Cotangents of the tangents of x, gamma and beta: our backward."""
    saved = {name: array for name, array in _named(names, arguments).items() if name in _PRIMALS}
    linear = {
        name: argument.aval for name, argument in _named(names, arguments).items() if ad.is_undefined_primal(argument)
    }
    of_results = _named(_results_of(names, with_total), cotangents).items()
    nonzero = {f"d{name}": cotangent for name, cotangent in of_results if not isinstance(cotangent, ad.Zero)}
    wanted = tuple(name in linear for name in _TANGENTS)

    def pull(*arrays: Any) -> Any:
        named = _named((*saved, *nonzero), arrays)
        x, mean, rstd, gamma = _in_order(_PRIMALS, named)
        dy, dmean, drstd, dtotal = _in_order(("dy", "dmean", "drstd", "dtotal"), named)
        dx = dtotal if "of_x" in linear else None
        dgamma = dbeta = None
        if dy is not None:
            if dx is None:
                dy = dy.astype(x.dtype)  # beside a wider total that nobody used
            of_beta: Any = linear.get("of_beta")
            if operators.accumulator(x, gamma, of_beta) != operators.accumulator(x, gamma):
                scale = jnp.ones(x.shape[x.ndim - normalized :]) if gamma is None else gamma
                gamma = scale.astype(of_beta.dtype)  # so that dbeta is summed as wide
            dtypes = tuple(linear[name].dtype if name in linear else x.dtype for name in ("of_gamma", "of_beta"))
            dx, dgamma, dbeta = backward(dy, x, mean, rstd, gamma, dx, normalized, wanted, dtypes, normalization, axis)
        if "of_x" in linear and not (dmean is None and drstd is None):
            more = operators.statistics_gradient(x, mean, rstd, dmean, drstd, normalized=normalized, axis=axis)
            dx = more if dx is None else dx + more
        return tuple(grad for grad, is_wanted in zip((dx, dgamma, dbeta), wanted, strict=True) if is_wanted)

    inner = tuple((*batched[: len(saved)], *(True,) * len(nonzero)) for batched in batches)
    grads = _named(linear, _batched(pull, inner)(*saved.values(), *nonzero.values()))
    results = []
    for k, name in enumerate(names):
        grad = grads.get(name)
        shared = tuple(level for level, batched in enumerate(batches) if not batched[k])
        results.append(grad.sum(shared).astype(linear[name].dtype) if grad is not None and shared else grad)
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


_primitive.def_impl(lambda *arrays, **static: jax.jit(partial(_evaluate, **static))(*arrays))
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
