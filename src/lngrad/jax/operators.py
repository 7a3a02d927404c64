"""The operations for XLA: our kernels where the program runs on a CPU, jax.numpy formulas where it does not.

Which of the two is settled when a traced program is lowered, so one program serves every platform.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from lngrad.core import formulas
from lngrad.core.dtypes import accumulator_for, numpy_dtype
from lngrad.core.problem import (
    BACKWARD,
    FORWARD,
    LAYER_NORM,
    RMS_BACKWARD,
    RMS_FORWARD,
    ROLES,
    WITH_RESIDUAL,
    Normalization,
    Operator,
    Role,
)
from lngrad.jax import calls
from lngrad.jax.meshes import result
from lngrad.typing import Dtype, Mask

Four: TypeAlias = tuple[Any, Any, Any, Any]  # arrays, or None


def accumulator(x: jax.Array, *parameters: jax.Array | None) -> Dtype:
    """The dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    return numpy_dtype(accumulator_for(x.dtype.name, *(one.dtype.name for one in parameters if one is not None)))


_JAX = formulas.Namespace(lambda array, dtype: array.astype(dtype), jnp.sqrt, jnp.zeros_like, accumulator)

# What runs where our kernels do not, and what JAX differentiates by itself.
total_formula = partial(formulas.total, _JAX)
backward_formula = partial(formulas.backward, _JAX)
statistics_gradient = partial(formulas.statistics_gradient, _JAX)
forward_tangents = partial(formulas.forward_tangents, _JAX)


def forward_formula(
    x: Any,
    gamma: Any,
    beta: Any,
    residual: Any = None,
    *,
    normalized: int,
    eps: Any,
    normalization: Normalization = LAYER_NORM,
) -> Four:
    """y, mean, rstd and total: mean is None where the normalization is not centred, total where there is no residual."""
    total = None if residual is None else total_formula(x, residual, gamma, beta, normalization=normalization)
    x = x if total is None else total
    results = formulas.forward(_JAX, x, gamma, beta, normalized=normalized, eps=eps, normalization=normalization)
    return *results, total


TARGET = "lngrad_layer_norm"  # in XLA's table of CPU functions: compiled and exported programs call it by this name

jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(calls.handler), platform="cpu")


_lowered: set[str] = set()  # TARGET, once a program calls it


@atexit.register
def _finish() -> None:
    """Let programs that were dispatched and not awaited end, before the interpreter that their calls need does."""
    if not _lowered:
        return  # and no platform is woken for this
    with suppress(Exception):
        for array in jax.live_arrays("cpu"):
            with suppress(Exception):  # deleted, or its program failed: nobody is left to care
                array.block_until_ready()
    calls.wait_until_idle()


def _call(like: Any, shapes: list[tuple[int, ...]], dtypes: list[Any], attribute: Any, *arrays: Any) -> list[Any]:
    """Our handler on some arrays, all of which vary over the same axes of a mesh; `like` is one of them."""
    _lowered.add(TARGET)
    results = [result(like, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return jax.ffi.ffi_call(TARGET, results, vmap_method="expand_dims")(*arrays, call=attribute)  # type: ignore[no-any-return]


FORWARDS, _BACKWARDS = (RMS_FORWARD, FORWARD), (RMS_BACKWARD, BACKWARD)  # not centred, centred


def row(operators: tuple[Operator, Operator], normalization: Normalization, is_added: bool) -> Operator:
    """The operator of a normalization, of a sum (or with the gradient of one) if something is added."""
    operator = operators[normalization.centred]
    return WITH_RESIDUAL[operator] if is_added else operator


def _computed(
    operator: Operator,
    given: dict[str, Any],
    *,
    normalized: int,
    normalization: Normalization,
    wanted: Mask,
    dtypes: dict[str, Dtype] | None = None,
    numbers: tuple[float, ...] = (),
) -> dict[str, Any]:
    """Results of an operator by our kernels, those that are wanted.

    given has its inputs by name, None for a parameter that is absent; dtypes are those of gradients of parameters.
    """
    x = given["x"]
    lead, dtype = x.ndim - normalized, accumulator(x, given["gamma"], given.get("beta"))
    rows = (*x.shape[:lead], *(1,) * normalized)
    outputs = [name for name, want in zip(operator.outputs, wanted, strict=True) if want]
    shape_of = {Role.TENSOR: x.shape, Role.STATISTIC: rows, Role.PARAMETER: x.shape[lead:]}
    dtype_of = {name: x.dtype if ROLES[name] is Role.TENSOR else dtype for name in outputs} | (dtypes or {})
    present = [given[name] is not None for name in operator.inputs if ROLES[name] is Role.PARAMETER]
    mask = wanted if operator.direction == "backward" else ()
    attribute = calls.attribute(operator, lead, normalized, present, mask, numbers, normalization)
    arrays = [
        given[name] if ROLES[name] is Role.TENSOR else given[name].astype(dtype).reshape(shape_of[ROLES[name]])
        for name in operator.inputs
        if given[name] is not None
    ]
    shapes, result_dtypes = [shape_of[ROLES[name]] for name in outputs], [dtype_of[name] for name in outputs]
    return dict(zip(outputs, _call(x, shapes, result_dtypes, attribute, *arrays), strict=True))


def forward(
    x: Any, gamma: Any, beta: Any, residual: Any, *, normalized: int, eps: float, normalization: Normalization
) -> Four:
    """y, mean, rstd and total; see forward_formula."""
    operator = row(FORWARDS, normalization, residual is not None)
    formula = partial(forward_formula, normalized=normalized, eps=eps, normalization=normalization)
    if x.size == 0:
        return formula(x, gamma, beta, residual)

    def on_cpu(x: Any, gamma: Any, beta: Any, residual: Any) -> Four:
        given = {"x": x, "gamma": gamma, "beta": beta, "residual": residual}
        results = _computed(
            operator,
            given,
            normalized=normalized,
            normalization=normalization,
            wanted=operator.everything,
            numbers=(eps,),
        )
        return results["y"], results.get("mean"), results["rstd"], results.get("total")

    return jax.lax.platform_dependent(x, gamma, beta, residual, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]


def backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    dtotal: Any,
    *,
    normalized: int,
    wanted: Mask,
    dtypes: tuple[Dtype, Dtype],
    normalization: Normalization,
) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; see backward_formula."""
    operator = row(_BACKWARDS, normalization, dtotal is not None)
    formula = partial(
        backward_formula, normalized=normalized, wanted=wanted, dtypes=dtypes, normalization=normalization
    )
    if x.size == 0 or not any(wanted):
        return formula(dy, x, mean, rstd, gamma, dtotal)

    def on_cpu(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dtotal: Any) -> tuple[Any, Any, Any]:
        given = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma, "dtotal": dtotal}
        results = _computed(
            operator,
            given,
            normalized=normalized,
            normalization=normalization._replace(alpha=1.0),
            wanted=wanted[: len(operator.outputs)],
            dtypes=dict(zip(("dgamma", "dbeta"), dtypes, strict=True)),
        )
        return results.get("dx"), results.get("dgamma"), results.get("dbeta")

    given = dy, x, mean, rstd, gamma, dtotal
    return jax.lax.platform_dependent(*given, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]
