"""Other libraries, a row each: torch, torch compiled, JAX and MindSpore."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.implementations.implementation import (
    Arguments,
    Implementation,
    NotApplicable,
    PreparedCall,
    Rule,
    parameters_as_gamma,
    takes_variance,
    tensors_as_x,
)
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import PLAIN
from lngrad.core.problem import Forward
from lngrad.support.dtypes import to_torch
from lngrad.typing import Array

# LayerNorm's default, which LayerNormGrad on the CPU adds whatever the forward's was (2.10: measured).
_MINDSPORE_EPS = 1e-7


def tensors(a: Arguments) -> Arguments:
    """torch's tensors, on the memory of contiguous arrays; gamma and beta are there, statistics in gamma's dtype on a CPU."""
    import torch

    t = a.map(lambda array: array if torch.is_tensor(array) else to_torch(np.ascontiguousarray(array)))
    gamma = torch.ones(a.normalized_shape, dtype=t.x.dtype, device=t.x.device) if t.gamma is None else t.gamma
    beta = torch.zeros_like(gamma) if t.beta is None else t.beta
    mean, rstd = t.mean, t.rstd
    if mean is not None and t.x.is_cpu:  # torch's kernel for the CPU reads the statistics in the weight's dtype
        mean, rstd = mean.to(gamma.dtype), rstd.to(gamma.dtype)
    return Arguments(t.dy, t.x, mean, rstd, gamma, beta, a.normalized_shape, a.names, eps=a.eps, out=t.out)


def _torch_forward(a: Arguments) -> PreparedCall:
    import torch

    t, forward = tensors(a), torch.ops.aten.native_layer_norm
    if not a.normalization.centred:
        return partial(torch.nn.functional.rms_norm, t.x, t.normalized_shape, t.gamma, t.eps)
    arguments = t.x, list(t.normalized_shape), t.gamma, t.beta, t.eps
    return partial(forward, *arguments) if t.out is None else partial(forward.out, *arguments, **_outputs(t.out))


def _torch_backward(a: Arguments) -> PreparedCall:
    """The operator behind torch.nn.LayerNorm's gradients; the derivative of rms_norm, which has no operator on a CPU."""
    import torch

    if not a.normalization.centred:
        return _torch_rms_backward(a)
    t, backward = tensors(a), torch.ops.aten.native_layer_norm_backward
    arguments = t.dy, t.x, list(t.normalized_shape), t.mean, t.rstd, t.gamma, t.beta, list(t.output_mask)
    return partial(backward, *arguments) if t.out is None else partial(backward.out, *arguments, **_outputs(t.out))


def _torch_rms_backward(a: Arguments) -> PreparedCall:
    import torch

    t, eps = tensors(a), a.eps if a.case is None else a.case.eps
    leaves = [array.detach().requires_grad_() for array in (t.x, t.gamma)]

    def call() -> Any:
        y = torch.nn.functional.rms_norm(leaves[0], t.normalized_shape, leaves[1], eps)
        dx, dgamma = torch.autograd.grad(y, leaves, t.dy)
        return a.masked(dx=dx, dgamma=dgamma)

    return call


def _outputs(out: tuple[Any, ...]) -> dict[str, Any]:
    return {f"out{number}": tensor for number, tensor in enumerate(out)}


def _torch_statistics(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if case.norm != "layer_norm":
        return statistics_of_x(case, drawn)
    parameter = case.gamma_dtype or case.dtype
    if drawn.inputs.mean.dtype.name == parameter or parameter in ("float32", "float64"):
        return None
    return f"torch reads mean and rstd in gamma's dtype, {parameter}, not in {case.statistics_dtype}"


def set_torch_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _torch_allocated(call: PreparedCall) -> tuple[int, str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in seen.events()), "torch's allocator, by its profiler"


@cache
def _compiled() -> Any:
    import torch
    from torch.nn.functional import layer_norm

    def gradients(dy: Any, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
        _, pullback = torch.func.vjp(
            lambda *arrays: layer_norm(arrays[0], gamma.shape, arrays[1], arrays[2], eps), x, gamma, beta
        )
        return pullback(dy)

    return torch.compile(gradients, dynamic=True)


def _compiled_backward(a: Arguments) -> PreparedCall:
    """torch.compile of layer_norm and its derivative: Inductor's kernels, with statistics of its own."""
    t, eps = tensors(a), a.eps if a.case is None else a.case.eps

    def call() -> Any:
        dx, dgamma, dbeta = _compiled()(t.dy, t.x, t.gamma, t.beta, eps)
        return a.masked(dx=dx, dgamma=dgamma, dbeta=dbeta)

    return call


def statistics_of_x(case: CheckCase, drawn: DrawnInputs) -> str | None:
    mean = case.ranges.get("mean", (0.0, 0.0)) if case.normalization.centred else None
    if mean is None and case.ranges.get("statistic", (0.0, 0.0)) is None:
        return None
    return "a derivative computes mean and rstd from x; this case gives others"


def xla_flushes(case: CheckCase, drawn: DrawnInputs) -> str | None:
    least = np.finfo(case.dtype).tiny if case.dtype in ("float32", "float64") else 0.0
    is_small = (drawn.inputs.dy != 0) & (np.abs(drawn.inputs.dy) < least)
    return "XLA takes subnormal numbers for 0 on a CPU, whatever a kernel does" if is_small.any() else None


def _jax_backward(a: Arguments) -> PreparedCall:
    """The formula in JAX, compiled by XLA, from the statistics that are given."""
    M, N = a.M, a.N
    gamma = np.ones(N, a.x.dtype) if a.gamma is None else a.gamma.reshape(N)
    dtotal = np.zeros((), a.x.dtype) if a.dtotal is None else a.dtotal.reshape(M, N)
    arrays = a.dy.reshape(M, N), a.x.reshape(M, N), a.mean.reshape(M, 1), a.rstd.reshape(M, 1), gamma, dtotal
    switches = a.normalization.centred, a.offset

    def call() -> Any:
        results = _jax_program()(*arrays, *switches)
        return a.masked(
            **{name: np.asarray(results[name]).reshape(a.shapes[name]).astype(a.dtypes[name]) for name in a.wanted}
        )

    return call


@cache
def _jax_program() -> Any:
    import jax
    import jax.numpy as jnp

    def program(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dtotal: Any, centred: bool, offset: float) -> Any:
        wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
        dy, x, mean, rstd, gamma, dtotal = (array.astype(wide) for array in (dy, x, mean, rstd, gamma, dtotal))
        xhat, dxhat = (x - mean) * rstd, dy * (gamma + offset)
        means = dxhat.mean(1, keepdims=True) if centred else 0.0, (dxhat * xhat).mean(1, keepdims=True)
        dx = rstd * (dxhat - means[0] - xhat * means[1]) + dtotal
        return {"dx": dx, "dgamma": (dy * xhat).sum(0), "dbeta": dy.sum(0)}

    return jax.jit(program, static_argnums=(6, 7))


def _jax_forward(a: Arguments) -> PreparedCall:
    def call() -> Forward:
        import jax.numpy as jnp

        x = jnp.asarray(a.x) if a.residual is None else a.alpha * jnp.asarray(a.x) + a.residual
        mean = x.mean(-1, keepdims=True) if a.normalization.centred else jnp.zeros_like(x[..., :1])
        centred = x - mean
        rstd = 1 / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + a.eps)
        y = centred * rstd * a.normalization.scale(a.gamma) + (0 if a.beta is None else a.beta)
        return Forward(*map(np.asarray, (y, mean, rstd)))

    return call


def jax_float64(case: CheckCase, drawn: DrawnInputs) -> str | None:
    import jax

    return "float64 needs jax_enable_x64" if case.dtype == "float64" and not jax.config.jax_enable_x64 else None


def _mindspore_backward(a: Arguments) -> PreparedCall:
    """MindSpore's LayerNormGrad on the CPU. It takes a variance, given here so that its rstd is the right one."""
    import mindspore
    from mindspore.ops.operations._grad_ops import LayerNormGrad

    if a.x.dtype.name not in ("float32", "float16") or a.gamma is None or a.gamma.dtype != a.x.dtype:
        raise NotApplicable("MindSpore's LayerNormGrad is called in float32 or float16, with gamma in x's dtype")
    if not a.x.size:
        raise NotApplicable("MindSpore takes no empty arrays")
    M, N = a.M, a.N
    variance = (a.row_variance() + a.eps - _MINDSPORE_EPS).astype(np.float32)
    arrays: tuple[Array, ...] = (
        a.x.reshape(M, N), a.dy.reshape(M, N), variance.reshape(M, 1), np.asarray(a.mean, np.float32).reshape(M, 1),
        a.gamma.reshape(N),
    )  # fmt: skip
    tensors = [mindspore.Tensor(np.ascontiguousarray(array)) for array in arrays]
    operation = LayerNormGrad(1, 1)

    def call() -> Any:
        dx, dgamma, dbeta = (result.asnumpy() for result in operation(*tensors))
        results = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
        return a.masked(**{name: array.reshape(a.shapes[name]) for name, array in results.items()})

    return call


_TORCH: tuple[Rule, ...] = (tensors_as_x, parameters_as_gamma("torch"))

LIBRARIES = (
    Implementation(
        "torch", _torch_backward, _torch_forward, ("layer_norm", "rms_norm"), takes=(*_TORCH, _torch_statistics),
        needs="torch", package="torch", into=True, set_threads=set_torch_threads, allocated=_torch_allocated,
        own_statistics=("rms_norm",),
    ),
    Implementation(
        "torch_compile", _compiled_backward, takes=(statistics_of_x, *_TORCH), needs="torch", package="torch",
        where="Inductor", set_threads=set_torch_threads, allocated=_torch_allocated, own_statistics=("layer_norm",),
    ),
    Implementation("jax", _jax_backward, _jax_forward, PLAIN, takes=(jax_float64, xla_flushes), needs="jax", package="jax"),
    Implementation(
        "mindspore", _mindspore_backward, needs="mindspore", package="mindspore", title="MindSpore",
        takes=(tensors_as_x, parameters_as_gamma("MindSpore"), takes_variance("MindSpore")),
    ),
)  # fmt: skip
