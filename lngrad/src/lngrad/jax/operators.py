"""The operations for XLA: our kernels where the program runs on a CPU, jax.numpy formulas where it does not.

Which of the two is settled when a traced program is lowered, so one program serves every platform.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from lngrad.core import formulas
from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    GATED_BACKWARD,
    GATED_FORWARD,
    LAYER_NORM,
    ROLES,
    WITH_GATE,
    ForwardWithTotal,
    Normalization,
    Operator,
    Role,
    operator_of,
)
from lngrad.jax import calls, meshes
from lngrad.jax.meshes import result, vary_together
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.typing import Dtype, Mask

Four: TypeAlias = tuple[Any, Any, Any, Any]  # arrays, or None
AxisName: TypeAlias = "str | tuple[str, ...] | None"  # of a mesh, that rows are cut along; the first is the slowest


def accumulator(x: jax.Array, *parameters: jax.Array | None) -> Dtype:
    """The dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    names = (parameter.dtype.name for parameter in parameters if parameter is not None)
    return numpy_dtype(accumulator_for(x.dtype.name, *names))


_JAX = formulas.Namespace(
    lambda array, dtype: array.astype(dtype), jnp.sqrt, jnp.zeros_like, jax.nn.sigmoid, accumulator
)

# What runs where our kernels do not, and what JAX differentiates by itself.
total_formula = partial(formulas.total, _JAX)


def _along(formula: Callable[..., Any], *arrays: Any, axis: AxisName = None, **static: Any) -> Any:
    """A formula of rows that are whole, or cut along `axis`: sums over their slices are then summed over it."""
    if axis is None:
        return formula(_JAX, *arrays, **static)

    def whole(sums: Any) -> Any:
        return vary_together(jax.lax.psum(sums, axis), sums)[0]

    return formula(replace(_JAX, whole=whole, parts=jax.lax.axis_size(axis)), *arrays, **static)


backward_formula = partial(_along, formulas.backward)
statistics_gradient = partial(_along, formulas.statistics_gradient)
forward_tangents = partial(_along, formulas.forward_tangents)


def forward_formula(
    x: Any,
    gamma: Any,
    beta: Any,
    residual: Any = None,
    *,
    normalized: int,
    eps: Any,
    normalization: Normalization = LAYER_NORM,
    axis: AxisName = None,
) -> Four:
    """y, mean, rstd and total: mean is None where the normalization is not centred, total where there is no residual."""
    total = None if residual is None else total_formula(x, residual, gamma, beta, normalization=normalization)
    dtype, x = x.dtype, x if total is None else total
    static = {"normalized": normalized, "eps": eps, "normalization": normalization, "axis": axis, "dtype_y": dtype}
    return *_along(formulas.forward, x, gamma, beta, **static), total


TARGET = "lngrad_layer_norm"  # in XLA's table of CPU functions: compiled and exported programs call it by this name

for target in (TARGET, meshes.TARGET) if calls.why_not is None else ():
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(calls.handler.function), platform="cpu")


_lowered: set[str] = set()  # the targets that a program calls


@atexit.register
def _finish() -> None:
    """Wait for dispatched programs at exit: their callbacks need the interpreter."""
    if not _lowered:
        return  # and no platform is woken for this
    with suppress(Exception):
        for array in jax.live_arrays("cpu"):
            with suppress(Exception):  # deleted, or its program failed: nobody is left to care
                array.block_until_ready()
    calls.wait_until_idle()


def _call(like: Any, shapes: list[tuple[int, ...]], dtypes: list[Any], attribute: Any, *arrays: Any) -> list[Any]:
    """A call of our handler on arrays that all vary over the same axes of a mesh; `like` is one of them."""
    if calls.why_not is not None:
        raise calls.why_not
    _lowered.add(TARGET)
    results = [result(like, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return jax.ffi.ffi_call(TARGET, results, vmap_method="expand_dims")(*arrays, call=attribute)  # type: ignore[no-any-return]


def _on_cpu(
    most: Operator,
    *arrays: Any,
    normalized: int,
    normalization: Normalization,
    wanted: Mask = (),
    dtypes: tuple[Dtype, ...] = (),
    numbers: tuple[float, ...] = (),
) -> tuple[Any, ...]:
    """Results by our kernels.

    Args:
        most: The operator with all that can be an argument or a result; arrays are its inputs, None for an absent one.
        wanted, dtypes: Of a backward: which of most's outputs, and the dtypes of dgamma and dbeta.
        numbers: The operator's.
    """
    named, is_wanted = dict(zip(most.inputs, arrays, strict=True)), dict(zip(most.outputs, wanted, strict=False))
    is_added = any(named.get(name) is not None for name in ("residual", "dtotal"))
    operator = most if most in WITH_GATE.values() else operator_of(most.direction, normalization, residual=is_added)
    mask = tuple(is_wanted[name] for name in operator.outputs if name in is_wanted)
    outputs = [name for name, want in zip(operator.outputs, mask or operator.everything, strict=True) if want]
    x = named["x"]
    lead, dtype = x.ndim - normalized, accumulator(x, named["gamma"], named.get("beta"))
    shapes = {
        Role.TENSOR: x.shape,
        Role.STATISTIC: (*x.shape[:lead], *(1,) * normalized),
        Role.PARAMETER: x.shape[lead:],
    }
    of_result = {Role.TENSOR: x.dtype, Role.STATISTIC: dtype}
    of_parameter = dict(zip(("dgamma", "dbeta"), dtypes, strict=False))
    if "residual" in operator.inputs:
        of_parameter["total"] = named["residual"].dtype
    present = [named[name] is not None for name in operator.inputs if ROLES[name] is Role.PARAMETER]
    attribute = calls.attribute(operator, lead, normalized, present, mask, numbers, normalization)
    arguments = [
        named[name] if ROLES[name] is Role.TENSOR else named[name].astype(dtype).reshape(shapes[ROLES[name]])
        for name in operator.inputs
        if named[name] is not None
    ]
    result_dtypes = [of_parameter.get(name) or of_result[ROLES[name]] for name in outputs]
    results = _call(x, [shapes[ROLES[name]] for name in outputs], result_dtypes, attribute, *arguments)
    return tuple(map(dict(zip(outputs, results, strict=True)).get, most.outputs))


def _forward_of_slices(
    x: Any, gamma: Any, beta: Any, residual: Any, *, normalized: int, eps: float, normalization: Normalization,
    axis: AxisName,
) -> Four:  # fmt: skip
    _lowered.add(meshes.TARGET)
    shape, dtype, total = x.shape, x.dtype, None
    if residual is not None:  # by our kernel, which rounds it once: of its other results nothing is taken
        static: dict[str, Any] = {"normalized": normalized, "normalization": normalization}
        x = total = ForwardWithTotal(*_on_cpu(ADD_FORWARD, x, gamma, beta, residual, numbers=(eps,), **static)).total
    (rows,), parameters = _flat(normalized, accumulator(x, gamma, beta), (x,), (gamma, beta))
    results = meshes.SlicedCall(axis, rows, normalization, eps).forward(*parameters)
    columns = (*shape[: x.ndim - normalized], *(1,) * normalized)
    mean, rstd = (None if name not in results else results[name].reshape(columns) for name in ("mean", "rstd"))
    return results["y"].astype(dtype).reshape(shape), mean, rstd, total


def _backward_of_slices(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dtotal: Any, *, normalized: int, wanted: Mask,
    dtypes: tuple[Dtype, Dtype], normalization: Normalization, axis: AxisName,
) -> tuple[Any, Any, Any]:  # fmt: skip
    _lowered.add(meshes.TARGET)
    dtype, shape = accumulator(x, gamma), x.shape
    (dy, rows, dtotal), (scale,) = _flat(normalized, dtype, (dy, x, dtotal), (gamma,))
    mean, rstd = (None if statistic is None else statistic.astype(dtype).reshape(-1, 1) for statistic in (mean, rstd))
    columns = rows.shape[1:]
    specs = {"dx": (rows.shape, rows.dtype), "dgamma": (columns, dtypes[0]), "dbeta": (columns, dtypes[1])}
    specs = {name: spec for (name, spec), want in zip(specs.items(), wanted, strict=True) if want}
    mean = mean if normalization.centred else None
    grads = meshes.SlicedCall(axis, rows, normalization).backward(specs, scale, dtotal, dy=dy, mean=mean, rstd=rstd)
    if "dx" in grads:
        grads["dx"] = grads["dx"].astype(x.dtype).reshape(shape)
    dgamma, dbeta = (
        grads[name].reshape(shape[x.ndim - normalized :]) if name in grads else None for name in ("dgamma", "dbeta")
    )
    return grads.get("dx"), dgamma, dbeta


def _flat(
    normalized: int, dtype: Dtype, tensors: tuple[Any, ...], parameters: tuple[Any, ...]
) -> tuple[list[Any], list[Any]]:
    """Rows (M, n), in the accumulator's dtype where x's own has another; parameters (n,) in the accumulator's."""
    columns = math.prod(tensors[0].shape[tensors[0].ndim - normalized :])
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}  # float32 beside 16 bits: a stream of totals
    of_rows = tensors[0].dtype if len(dtypes) == 1 and accumulator(tensors[0]) == dtype else dtype
    rows = [None if tensor is None else tensor.astype(of_rows).reshape(-1, columns) for tensor in tensors]
    return rows, [None if parameter is None else parameter.astype(dtype).reshape(-1) for parameter in parameters]


def _keeps_bits(x: Any, normalized: int) -> bool:
    return meshes.keeps_bits(math.prod(x.shape[x.ndim - normalized :]))


def forward(x: Any, *rest: Any, normalized: int, eps: float, normalization: Normalization, axis: AxisName) -> Four:
    """y, mean, rstd and total of x, gamma, beta and residual; see forward_formula."""
    static: dict[str, Any] = {"normalized": normalized, "normalization": normalization}
    formula: Callable[..., Four] = partial(forward_formula, eps=eps, axis=axis, **static)
    if x.size == 0 or (axis is not None and not _keeps_bits(x, normalized)):
        return formula(x, *rest)
    on_cpu = partial(_on_cpu, ADD_FORWARD, numbers=(eps,), **static)
    if axis is not None:
        on_cpu = partial(_forward_of_slices, eps=eps, axis=axis, **static)
    return jax.lax.platform_dependent(x, *rest, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]


def backward(
    dy: Any, x: Any, *rest: Any, wanted: Mask, normalization: Normalization, axis: AxisName, **static: Any
) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; see backward_formula."""
    static["wanted"] = wanted
    formula = partial(backward_formula, normalization=normalization, axis=axis, **static)
    cut = axis is not None and not _keeps_bits(x, static["normalized"])
    if x.size == 0 or not any(wanted) or cut:
        return formula(dy, x, *rest)  # type: ignore[no-any-return]
    switches = normalization._replace(alpha=1.0)
    on_cpu = partial(_on_cpu, ADD_BACKWARD, normalization=switches, **static)
    if axis is not None:
        on_cpu = partial(_backward_of_slices, normalization=switches, axis=axis, **static)
    return jax.lax.platform_dependent(dy, x, *rest, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]


Gated: TypeAlias = tuple[int, float, Normalization]  # how many dimensions a row has, eps, and which normalization it is


def gated_formula(x: Any, gamma: Any, gate: Any, static: Gated) -> Any:
    """y and rstd of RMS normalization with a gate, and no total."""
    normalized, eps, normalization = static
    y, rstd = formulas.gated_forward(_JAX, x, gamma, gate, normalized=normalized, eps=eps, normalization=normalization)
    return y, rstd, None


def gated_gradients_formula(dy: Any, x: Any, rstd: Any, gamma: Any, gate: Any, static: Gated) -> Any:
    """dx, dgamma, None without gamma, and dgate; rstd is x's."""
    return jax.vjp(lambda x, gamma, gate: gated_formula(x, gamma, gate, static)[0], x, gamma, gate)[1](dy)


def _gated(operator: Operator, formula: Callable[..., Any], *arrays: Any, static: Gated) -> Any:
    """The forward or the backward with a gate: by our kernel, or its formula."""
    named, (normalized, eps, normalization) = dict(zip(operator.inputs, arrays, strict=True)), static
    plain, gamma, facts = partial(formula, static=static), named["gamma"], dict[str, Any](numbers=(eps,))
    if named["gate"].size == 0:
        return plain(*arrays)
    if operator is GATED_BACKWARD:
        facts = {"wanted": (True, gamma is not None, True), "dtypes": () if gamma is None else (gamma.dtype,)}
    on_cpu = partial(_on_cpu, operator, normalized=normalized, normalization=normalization, **facts)
    return jax.lax.platform_dependent(*arrays, cpu=on_cpu, default=plain)


gated_forward = partial(_gated, GATED_FORWARD, gated_formula)
gated_backward = partial(_gated, GATED_BACKWARD, gated_gradients_formula)
