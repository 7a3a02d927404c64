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
    ADD_BACKWARD,
    ADD_FORWARD,
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


_ROWS = {
    ("forward", True): FORWARD,
    ("forward", False): RMS_FORWARD,
    ("backward", True): BACKWARD,
    ("backward", False): RMS_BACKWARD,
}


def row(direction: str, normalization: Normalization, is_added: bool) -> Operator:
    """The operator of a normalization, of a sum (or with the gradient of one) if something is added."""
    operator = _ROWS[direction, normalization.centred]
    return WITH_RESIDUAL[operator] if is_added else operator


def _on_cpu(
    most: Operator,
    *arrays: Any,
    normalized: int,
    normalization: Normalization,
    wanted: Mask = (),
    dtypes: tuple[Dtype, ...] = (),
    numbers: tuple[float, ...] = (),
) -> tuple[Any, ...]:
    """Results by our kernels. `most` is the row with all that can be given and computed, None for what is absent."""
    given = dict(zip(most.inputs, arrays, strict=True))
    operator = row(most.direction, normalization, arrays[-1] is not None)
    mask = wanted[: len(operator.outputs)]
    outputs = [name for name, want in zip(operator.outputs, mask or operator.everything, strict=True) if want]
    x = given["x"]
    lead, dtype = x.ndim - normalized, accumulator(x, given["gamma"], given.get("beta"))
    shapes = {
        Role.TENSOR: x.shape,
        Role.STATISTIC: (*x.shape[:lead], *(1,) * normalized),
        Role.PARAMETER: x.shape[lead:],
    }
    of_result = {Role.TENSOR: x.dtype, Role.STATISTIC: dtype}
    of_parameter = dict(zip(("dgamma", "dbeta"), dtypes, strict=False))
    present = [given[name] is not None for name in operator.inputs if ROLES[name] is Role.PARAMETER]
    attribute = calls.attribute(operator, lead, normalized, present, mask, numbers, normalization)
    arguments = [
        given[name] if ROLES[name] is Role.TENSOR else given[name].astype(dtype).reshape(shapes[ROLES[name]])
        for name in operator.inputs
        if given[name] is not None
    ]
    result_dtypes = [of_parameter.get(name) or of_result[ROLES[name]] for name in outputs]
    results = _call(x, [shapes[ROLES[name]] for name in outputs], result_dtypes, attribute, *arguments)
    return tuple(map(dict(zip(outputs, results, strict=True)).get, most.outputs))


def forward(*given: Any, normalized: int, eps: float, normalization: Normalization) -> Four:
    """y, mean, rstd and total of x, gamma, beta and residual; see forward_formula."""
    static: dict[str, Any] = {"normalized": normalized, "normalization": normalization}
    formula = partial(forward_formula, eps=eps, **static)
    if given[0].size == 0:
        return formula(*given)
    on_cpu = partial(_on_cpu, ADD_FORWARD, numbers=(eps,), **static)
    return jax.lax.platform_dependent(*given, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]


def backward(*given: Any, wanted: Mask, normalization: Normalization, **static: Any) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; see backward_formula."""
    static["wanted"] = wanted
    formula = partial(backward_formula, normalization=normalization, **static)
    if given[1].size == 0 or not any(wanted):
        return formula(*given)
    on_cpu = partial(_on_cpu, ADD_BACKWARD, normalization=normalization._replace(alpha=1.0), **static)
    return jax.lax.platform_dependent(*given, cpu=on_cpu, default=formula)  # type: ignore[no-any-return]
