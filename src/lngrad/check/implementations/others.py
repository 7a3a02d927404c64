"""Other libraries' backwards, by name: torch, torch compiled, JAX, oneDNN, MindSpore, where they are installed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.implementations import onednn
from lngrad.check.implementations.interface import (
    NotApplicable,
    dx_as_x,
    no_variance_below_zero,
    parameters_as_gamma,
)
from lngrad.check.inputs import DrawnInputs
from lngrad.core.dtypes import to_torch
from lngrad.core.problem import Grads


def torch_backward(case: CheckCase, given: DrawnInputs) -> Grads:
    import torch

    dx_as_x(case)
    parameters_as_gamma(case, "torch")
    parameter = case.gamma_dtype or case.dtype

    def tensor(array: Any) -> Any:
        return to_torch(np.ascontiguousarray(array))

    one = given.inputs
    dy, x, mean, rstd = map(tensor, (one.dy, one.x, one.mean, one.rstd))
    weight = torch.ones(case.normalized, dtype=x.dtype) if one.gamma is None else tensor(one.gamma)
    # torch's kernel reads the statistics in the weight's dtype.
    if mean.dtype != weight.dtype:
        if weight.dtype not in (torch.float32, torch.float64):
            raise NotApplicable(
                f"torch reads mean and rstd in gamma's dtype, {parameter}, not in {case.statistics_dtype}"
            )
        mean, rstd = mean.to(weight.dtype), rstd.to(weight.dtype)
    results = torch.ops.aten.native_layer_norm_backward(
        dy, x, list(case.normalized), mean, rstd, weight, torch.zeros_like(weight), list(case.output_mask)
    )
    return Grads(*results)


@cache
def _compiled() -> Any:
    import torch
    from torch.nn.functional import layer_norm

    def gradients(dy: Any, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
        _, pullback = torch.func.vjp(
            lambda *some: layer_norm(some[0], gamma.shape, some[1], some[2], eps), x, gamma, beta
        )
        return pullback(dy)

    return torch.compile(gradients, dynamic=True)


def _statistics_are_x_s(case: CheckCase, whose: str) -> None:
    if case.ranges.get("mean", (0.0, 0.0)) is not None or case.ranges.get("statistic", (0.0, 0.0)) is not None:
        raise NotApplicable(f"{whose} computes mean and rstd from x; this case gives others")


def compiled_backward(case: CheckCase, given: DrawnInputs) -> Grads:
    """torch.compile of layer_norm and its derivative: Inductor's kernels, with statistics of its own."""
    import torch

    _statistics_are_x_s(case, "a compiled layer_norm")
    dx_as_x(case)
    parameters_as_gamma(case, "torch")
    one = given.inputs
    dy, x = (to_torch(np.ascontiguousarray(array)) for array in (one.dy, one.x))
    gamma = (
        torch.ones(case.normalized, dtype=x.dtype) if one.gamma is None else to_torch(np.ascontiguousarray(one.gamma))
    )
    return _wanted(case, Grads(*_compiled()(dy, x, gamma, torch.zeros_like(gamma), case.eps)))


def _wanted(case: CheckCase, grads: Grads) -> Grads:
    return Grads(*(one if wanted else None for one, wanted in zip(grads, case.output_mask, strict=True)))


def jax_backward(case: CheckCase, given: DrawnInputs) -> Grads:
    """The formula in JAX, compiled by XLA, from the statistics that the case gives."""
    import jax

    if case.dtype == "float64" and not jax.config.jax_enable_x64:
        raise NotApplicable("float64 needs jax_enable_x64")
    one = given.inputs
    N = max(1, case.N)
    M = case.M
    gamma = np.ones(N, one.x.dtype) if one.gamma is None else one.gamma.reshape(N)
    arrays = one.dy.reshape(M, N), one.x.reshape(M, N), one.mean.reshape(M, 1), one.rstd.reshape(M, 1), gamma
    dx, dgamma, dbeta = (np.asarray(result) for result in _jax_program()(*arrays))
    shapes = one.x.shape, case.normalized, case.normalized
    dtypes = case.output_dtypes
    results = (
        array.reshape(shape).astype(dtype)
        for array, shape, dtype in zip((dx, dgamma, dbeta), shapes, dtypes, strict=True)
    )
    return _wanted(case, Grads(*results))


@cache
def _jax_program() -> Any:
    import jax
    import jax.numpy as jnp

    def program(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
        wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
        dy, x, mean, rstd, gamma = (one.astype(wide) for one in (dy, x, mean, rstd, gamma))
        xhat, dxhat = (x - mean) * rstd, dy * gamma
        means = dxhat.mean(1, keepdims=True), (dxhat * xhat).mean(1, keepdims=True)
        return rstd * (dxhat - means[0] - xhat * means[1]), (dy * xhat).sum(0), dy.sum(0)

    return jax.jit(program)


def onednn_backward(case: CheckCase, given: DrawnInputs) -> Grads:
    """oneDNN's layer normalization; gamma, its gradients and the statistics are float32."""
    if case.dtype not in ("float32", "bfloat16", "float16"):
        raise NotApplicable(f"oneDNN takes float32, bfloat16 and float16, not {case.dtype}")
    if case.gamma_dtype not in (None, "float32") or case.output_dtypes[1:] != ("float32", "float32"):
        raise NotApplicable("oneDNN's gamma, dgamma and dbeta are float32")
    if not case.M * case.N:
        raise NotApplicable("oneDNN takes no empty arrays here")
    dx_as_x(case)
    no_variance_below_zero(given, "oneDNN")
    one = given.inputs
    M, N = case.M, case.N
    dy, x = (np.ascontiguousarray(array).reshape(M, N) for array in (one.dy, one.x))
    mean, variance = (np.asarray(array, np.float32).reshape(M) for array in (one.mean, given.variance))
    gamma = np.ones(N, np.float32) if one.gamma is None else np.ascontiguousarray(one.gamma).reshape(N)
    dx, dgamma, dbeta = np.empty_like(x), np.full(N, np.nan, np.float32), np.full(N, np.nan, np.float32)
    try:
        onednn.backward(dy, x, mean, variance, gamma, dx, dgamma, dbeta, eps=given.eps)()
    except onednn.OneDnnError as error:
        raise NotApplicable(f"oneDNN: {error}") from None
    results = Grads(dx.reshape(one.x.shape), dgamma.reshape(case.normalized), dbeta.reshape(case.normalized))
    return _wanted(case, results)


_MINDSPORE_EPS = (
    1e-7  # LayerNorm's default, which LayerNormGrad on the CPU adds whatever the forward's was (2.10: measured)
)


def mindspore_backward(case: CheckCase, given: DrawnInputs) -> Grads:
    """MindSpore's LayerNormGrad on the CPU. It takes a variance, given here so that its rstd is the case's."""
    import mindspore
    from mindspore.ops.operations._grad_ops import LayerNormGrad

    if case.dtype not in ("float32", "float16") or case.gamma_dtype != case.dtype:
        raise NotApplicable("MindSpore's LayerNormGrad is called in float32 or float16, with gamma in x's dtype")
    if not case.M * case.N:
        raise NotApplicable("MindSpore takes no empty arrays")
    dx_as_x(case)
    parameters_as_gamma(case, "MindSpore")
    no_variance_below_zero(given, "MindSpore")
    one, M, N = given.inputs, case.M, case.N
    exact = np.asarray(given.variance, np.float64) + given.eps
    arrays = [
        one.x.reshape(M, N),
        one.dy.reshape(M, N),
        (exact - _MINDSPORE_EPS).astype(np.float32).reshape(M, 1),
        np.asarray(one.mean, np.float32).reshape(M, 1),
        one.gamma.reshape(N),
    ]
    results = LayerNormGrad(1, 1)(*(mindspore.Tensor(np.ascontiguousarray(array)) for array in arrays))
    shapes = one.x.shape, case.normalized, case.normalized
    shaped = (result.asnumpy().reshape(shape) for result, shape in zip(results, shapes, strict=True))
    return _wanted(case, Grads(*shaped))
