"""The two operations for XLA: our kernels where the program runs on a CPU, jax.numpy formulas where it does not.

Which of the two is settled when a traced program is lowered, so one program serves every platform.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngrad.core import formulas
from lngrad.core.dtypes import accumulator_for, numpy_dtype
from lngrad.core.problem import BACKWARD, FORWARD
from lngrad.jax import calls
from lngrad.jax.meshes import result
from lngrad.typing import Dtype


def accumulator(x: jax.Array, *parameters: jax.Array | None) -> Dtype:
    """The dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    return numpy_dtype(accumulator_for(x.dtype.name, *(one.dtype.name for one in parameters if one is not None)))


_JAX = formulas.Namespace(lambda array, dtype: array.astype(dtype), jnp.sqrt, jnp.zeros_like, accumulator)

# What runs where our kernels do not, and what JAX differentiates by itself.
forward_formula = partial(formulas.forward, _JAX)
backward_formula = partial(formulas.backward, _JAX)
statistics_gradient = partial(formulas.statistics_gradient, _JAX)
forward_tangents = partial(formulas.forward_tangents, _JAX)


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


def forward(x: Any, gamma: Any, beta: Any, *, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    """y, mean and rstd; see forward_formula."""
    formula = partial(forward_formula, normalized=normalized, eps=eps)
    if x.size == 0:
        return formula(x, gamma, beta)
    return jax.lax.platform_dependent(  # type: ignore[no-any-return]
        x, gamma, beta, cpu=partial(_forward_cpu, normalized=normalized, eps=eps), default=formula
    )


def _forward_cpu(x: Any, gamma: Any, beta: Any, *, normalized: int, eps: float) -> tuple[Any, Any, Any]:
    lead, dtype = x.ndim - normalized, accumulator(x, gamma, beta)
    statistics = (*x.shape[:lead], *(1,) * normalized)
    attribute = calls.attribute(FORWARD, lead, normalized, (gamma is not None, beta is not None), numbers=(eps,))
    parameters = [parameter.astype(dtype) for parameter in (gamma, beta) if parameter is not None]
    y, mean, rstd = _call(x, [x.shape, statistics, statistics], [x.dtype, dtype, dtype], attribute, x, *parameters)
    return y, mean, rstd


def backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    *,
    normalized: int,
    wanted: tuple[bool, bool, bool],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
) -> tuple[Any, Any, Any]:
    """dx, dgamma and dbeta, None where not wanted; see backward_formula."""
    static: dict[str, Any] = {"normalized": normalized, "wanted": wanted, "dtypes": dtypes}
    if x.size == 0 or not any(wanted):
        return backward_formula(dy, x, mean, rstd, gamma, **static)
    return jax.lax.platform_dependent(  # type: ignore[no-any-return]
        dy, x, mean, rstd, gamma, cpu=partial(_backward_cpu, **static), default=partial(backward_formula, **static)
    )


def _backward_cpu(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    *,
    normalized: int,
    wanted: tuple[bool, bool, bool],
    dtypes: tuple[Any, Any],
) -> tuple[Any, Any, Any]:
    lead, dtype = x.ndim - normalized, accumulator(x, gamma)
    statistics = [array.astype(dtype).reshape(*x.shape[:lead], *(1,) * normalized) for array in (mean, rstd)]
    parameters = [] if gamma is None else [gamma.astype(dtype)]
    R = x.shape[lead:]
    all_results = ((x.shape, x.dtype), (R, dtypes[0]), (R, dtypes[1]))
    chosen = [result for result, want in zip(all_results, wanted, strict=True) if want]
    attribute = calls.attribute(BACKWARD, lead, normalized, (gamma is not None,), wanted)
    results = iter(_call(x, [s for s, _ in chosen], [d for _, d in chosen], attribute, dy, x, *statistics, *parameters))
    dx, dgamma, dbeta = (next(results) if want else None for want in wanted)
    return dx, dgamma, dbeta
