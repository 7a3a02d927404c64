"""The operators lngrad::layer_norm and lngrad::layer_norm_backward: schemas, kernels, fakes, batching, derivatives.

Opaque to torch.compile and torch.export, hence the same bits compiled as eager. A derivative is an operator again, or a
formula of torch operators. The same formulas serve twice: registered with the operators they are what torch.compile and
torch.export trace; in eager code two autograd.Functions carry them, because torch.func's transforms and forward mode need
more than an operator has. Second derivatives are written by hand: docs/performance.md has the time of torch.func.vjp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import torch

import lngrad
from lngrad.core import formulas
from lngrad.core.arrays import Output
from lngrad.core.problem import Problem
from lngrad.torch import calls, native
from lngrad.torch.calls import accumulator_of
from lngrad.typing import Mask, Shape, Tensor

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]

library = torch.library.Library("lngrad", "DEF")
library.define(
    "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? gamma, Tensor? beta, float eps) -> (Tensor, Tensor, Tensor)"
)
library.define(
    "layer_norm_backward(Tensor dy, Tensor x, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? gamma, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
layer_norm = torch.ops.lngrad.layer_norm.default
layer_norm_backward = torch.ops.lngrad.layer_norm_backward.default


# --- Kernels --------------------------------------------------------------------------------------------------------


def _gradient_dtype(x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, mask: Any) -> Any:
    return x.dtype if gamma is None else gamma.dtype


_forward = calls.forward_calls(accumulator_of)
_backward = calls.backward_calls(_gradient_dtype)
native.register("prepare_forward", calls.prepare(calls.plan_forward, accumulator_of))
native.register("prepare_backward", calls.prepare(calls.plan_backward, _gradient_dtype))


def _backward_cpu(dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any) -> tuple[Any, ...]:
    grads = _backward(dy, x, shape, mean, rstd, gamma, None, mask)
    return tuple(x.new_empty(0) if grad is None else grad for grad in grads)


def _forward_elsewhere(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
    return tuple(lngrad.layer_norm(x, tuple(shape), gamma, beta, eps=eps))


def _backward_elsewhere(dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any) -> tuple[Any, ...]:
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, normalized_shape=tuple(shape), output_mask=tuple(mask))
    return tuple(x.new_empty(0) if grad is None else grad for grad in grads)


def _fake(x: Any, outputs: tuple[Output | None, ...]) -> tuple[Any, ...]:
    """Results as the problem foretells them; what is masked off has no elements, since an operator must return a tensor."""
    return tuple(
        x.new_empty(0) if output is None else x.new_empty(output.shape, dtype=getattr(torch, output.dtype))
        for output in outputs
    )


def _fake_forward(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
    return _fake(x, Problem.forward(x, gamma, beta, tuple(shape))[0].outputs())


def _fake_backward(dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any) -> tuple[Any, ...]:
    return _fake(x, Problem.backward(dy, x, mean, rstd, gamma, tuple(shape), tuple(mask))[0].outputs())


library.impl("layer_norm", _forward, "CPU")
library.impl("layer_norm_backward", _backward_cpu, "CPU")
library.impl("layer_norm", _forward_elsewhere, "CUDA")
library.impl("layer_norm_backward", _backward_elsewhere, "CUDA")
torch.library.register_fake(layer_norm, _fake_forward, lib=library)
torch.library.register_fake(layer_norm_backward, _fake_backward, lib=library)
# As torch has it: autocast on a GPU computes layer normalization in float32, autocast on the CPU leaves the dtypes alone.
torch.library.register_autocast("lngrad::layer_norm", "cuda", torch.float32, lib=library)


# --- Batching -------------------------------------------------------------------------------------------------------


def _one_by_one(operator: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """Example after example: the bits of a call of its own, for what can't be done as more rows of one call."""
    results = []
    for example in range(info.batch_size):
        taken = (
            argument if dim is None else argument.select(dim, example)
            for argument, dim in zip(arguments, in_dims, strict=True)
        )
        results.append(operator(*taken))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0, 0, 0)


def _batch_forward(info: Any, in_dims: Any, x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> Any:
    in_dims = (in_dims[0], None, in_dims[2], in_dims[3], None)
    if in_dims[0] is None or in_dims[2] is not None or in_dims[3] is not None:
        return _one_by_one(torch.ops.lngrad.layer_norm, info, in_dims, (x, shape, gamma, beta, eps))
    return torch.ops.lngrad.layer_norm(x.movedim(in_dims[0], 0), shape, gamma, beta, eps), (0, 0, 0)


def _batch_backward(
    info: Any, in_dims: Any, dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any
) -> Any:
    in_dims = (*in_dims[:2], None, *in_dims[3:6], None)
    rows = (in_dims[0], in_dims[1], in_dims[3], in_dims[4])
    if mask[1] or mask[2] or in_dims[5] is not None or any(dim is None for dim in rows):
        return _one_by_one(torch.ops.lngrad.layer_norm_backward, info, in_dims, (dy, x, shape, mean, rstd, gamma, mask))
    dy, x, mean, rstd = (t.movedim(dim, 0) for t, dim in zip((dy, x, mean, rstd), rows, strict=True))
    dx, _, _ = torch.ops.lngrad.layer_norm_backward(dy, x, shape, mean, rstd, gamma, mask)
    return (dx, x.new_empty(0), x.new_empty(0)), (0, None, None)


torch.library.register_vmap(layer_norm, _batch_forward, lib=library)
torch.library.register_vmap(layer_norm_backward, _batch_backward, lib=library)


# --- Derivatives ----------------------------------------------------------------------------------------------------


# Inside a Function the call is recorded; the operator need not ask again.
_below_autograd = torch._C._AutoDispatchBelowAutograd


def differentiable_forward(x: Tensor, shape: list[int], gamma: Tensor | None, beta: Tensor | None, eps: float) -> Three:
    """y, mean and rstd; see the operator."""
    if torch.compiler.is_compiling():
        return layer_norm(x, shape, gamma, beta, eps)  # type: ignore[no-any-return]
    if not (type(x) in _PLAIN and type(gamma) in _PLAIN and type(beta) in _PLAIN):
        _load_rules(x, gamma, beta)
    if x.is_cuda and torch.is_autocast_enabled("cuda"):  # here, so that the casts are differentiated too
        x, gamma, beta = map(_as_autocast_has_it, (x, gamma, beta))
    return _Forward.apply(x, _Whole(shape), gamma, beta, eps)


def differentiable_backward(
    dy: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, gamma: Tensor | None, mask: list[bool]
) -> Three:
    """dx, dgamma and dbeta, without elements where masked off; see the operator."""
    if torch.compiler.is_compiling():
        return layer_norm_backward(dy, x, shape, mean, rstd, gamma, mask)  # type: ignore[no-any-return]
    if not all(type(tensor) in _PLAIN for tensor in (dy, x, mean, rstd, gamma)):
        _load_rules(dy, x, mean, rstd, gamma)
    return _Backward.apply(dy, x, _Whole(shape), mean, rstd, gamma, _Whole(mask))


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def _load_rules(*tensors: Any) -> None:
    """Have the rules for DTensors registered when the first one comes: they are a second of imports that others don't need."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    if dtensor is not None and any(isinstance(tensor, dtensor.DTensor) for tensor in tensors):
        import_module("lngrad.torch.sharded.rules")


def _as_autocast_has_it(tensor: Any) -> Any:
    """Autocast on a GPU computes layer normalization in float32, as torch's own."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


class _Whole(tuple):  # type: ignore[type-arg]
    """A tuple that torch.func takes as one thing: it counts a plain one's numbers among the tangents, and finds too few."""


_TORCH = formulas.Namespace(lambda tensor, dtype: tensor.to(dtype), torch.sqrt, torch.zeros_like, accumulator_of)


def _rows(x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, *parameters: Tensor | None) -> formulas.Rows:
    return formulas.Rows(_TORCH, x, mean, rstd, len(shape), *parameters)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, shape, gamma, beta, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, mean, rstd, gamma)
    ctx.shape = shape
    ctx.beta_dtype = None if beta is None else beta.dtype
    ctx.set_materialize_grads(False)


def _forward_derivative(ctx: Any, dy: Any, dmean: Any, drstd: Any) -> tuple[Any, ...]:
    x, mean, rstd, gamma = ctx.saved_tensors
    mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2], ctx.needs_input_grad[3]]
    dx, dgamma, dbeta = _gradients(ctx.shape, ctx.beta_dtype, mask, x, mean, rstd, gamma, dy, dmean, drstd)
    return dx, None, dgamma, dbeta, None


def _gradients(
    shape: Sequence[int], beta_dtype: Any, mask: list[bool], x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None,
    dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x, gamma and beta, each in its own dtype, from those by y, mean and rstd; beta_dtype: None without beta."""
    dx = dgamma = dbeta = None
    if dy is not None:
        dtype, scale = (x if gamma is None else gamma).dtype, gamma
        if beta_dtype not in (None, dtype):  # dbeta comes in gamma's dtype, and must not be rounded twice
            wide = torch.float64 if beta_dtype is torch.float64 else accumulator_of(x, gamma)
            scale = x.new_ones(shape, dtype=wide) if gamma is None else gamma.to(wide)
        grads = differentiable_backward(dy, x, list(shape), mean, rstd, scale, mask)
        dx, dgamma, dbeta = (grad if wanted else None for grad, wanted in zip(grads, mask, strict=True))
        if dgamma is not None:
            dgamma = dgamma.to(dtype)
        if dbeta is not None:
            dbeta = dbeta.to(beta_dtype)
    if mask[0] and (dmean is not None or drstd is not None):
        more = formulas.statistics_gradient(_TORCH, x, mean, rstd, dmean, drstd, normalized=len(shape))
        dx = more if dx is None else dx + more
    return dx, dgamma, dbeta


native.register("derivative", _gradients)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    dy, x, shape, mean, rstd, gamma, mask = inputs
    ctx.save_for_backward(dy, x, mean, rstd, gamma)
    ctx.shape, ctx.mask = shape, mask
    ctx.set_materialize_grads(False)


def _backward_derivative(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """Derivatives of S = Σ u·dx + Σ p·dgamma + Σ q·dbeta by dy, x, mean, rstd and gamma.

    With g = dy·gamma: Σ u·dx = Σ rstd·(u·g - N·mean(u)·mean(g) - N·mean(u·xhat)·mean(g·xhat)), row by row.
    """
    dy, x, mean, rstd, gamma = ctx.saved_tensors
    at = _rows(x, ctx.shape, mean, rstd, gamma)
    u, p, q = (
        None if tensor is None or not wanted else tensor.to(at.dtype)
        for tensor, wanted in zip(cotangents, ctx.mask, strict=True)
    )
    dy_wide = dy.to(at.dtype)
    zeros = torch.zeros_like(at.xhat)
    of_dy, of_xhat, of_rstd, of_gamma = zeros, zeros, zeros, None
    if u is not None:
        weight = 1.0 if gamma is None else gamma.to(at.dtype)
        g = dy_wide * weight
        mean_u_xhat, mean_g_xhat = at.mean_of(u * at.xhat), at.mean_of(g * at.xhat)
        of_g = at.rstd * (u - at.mean_of(u) - at.xhat * mean_u_xhat)
        of_dy = of_g * weight
        of_gamma = at.over_rows(of_g * dy_wide)
        of_xhat = -at.rstd * (g * mean_u_xhat + u * mean_g_xhat)
        of_rstd = u * (g - at.mean_of(g) - at.xhat * mean_g_xhat)
    if p is not None:
        of_dy = of_dy + p * at.xhat
        of_xhat = of_xhat + p * dy_wide
    if q is not None:
        of_dy = of_dy + q
    of_x = of_xhat * at.rstd
    of_mean = -of_x.sum(at.axes, keepdim=True)
    of_rstd = (of_rstd + of_xhat * at.centred).sum(at.axes, keepdim=True)
    return (
        of_dy.to(dy.dtype),
        of_x.to(x.dtype),
        None,
        of_mean.reshape(mean.shape).to(mean.dtype),
        of_rstd.reshape(rstd.shape).to(rstd.dtype),
        None if gamma is None or of_gamma is None else of_gamma.to(gamma.dtype),
        None,
    )


def _forward_tangents(
    ctx: Any, of_x: Tensor | None, _: None, of_gamma: Tensor | None, of_beta: Tensor | None, __: None
) -> Three:
    """Tangents of y, mean and rstd."""
    x, mean, rstd, gamma = ctx.saved_tensors
    return formulas.forward_tangents(_TORCH, x, mean, rstd, gamma, of_x, of_gamma, of_beta, normalized=len(ctx.shape))


def _backward_tangents(
    ctx: Any,
    of_dy: Tensor | None,
    of_x: Tensor | None,
    _: None,
    of_mean: Tensor | None,
    of_rstd: Tensor | None,
    of_gamma: Tensor | None,
    __: None,
) -> Three:
    """Tangents of dx, dgamma and dbeta, without elements where masked off."""
    dy, x, mean, rstd, gamma = ctx.saved_tensors
    at = _rows(x, ctx.shape, mean, rstd, gamma)
    zeros = torch.zeros_like(at.xhat)
    dy_wide = dy.to(at.dtype)
    of_dy, of_x = (zeros if tangent is None else tangent.to(at.dtype) for tangent in (of_dy, of_x))
    of_mean, of_rstd = (
        zeros if tangent is None else tangent.to(at.dtype).reshape(at.mean.shape) for tangent in (of_mean, of_rstd)
    )
    of_xhat = (of_x - of_mean) * at.rstd + at.centred * of_rstd
    of_dx = of_dgamma = of_dbeta = x.new_zeros(0)
    if ctx.mask[0]:
        weight = 1.0 if gamma is None else gamma.to(at.dtype)
        g, of_g = dy_wide * weight, of_dy * weight
        if of_gamma is not None:
            of_g = of_g + dy_wide * of_gamma.to(at.dtype)
        mean_g_xhat = at.mean_of(g * at.xhat)
        inner = g - at.mean_of(g) - at.xhat * mean_g_xhat
        of_mean_g_xhat = at.mean_of(of_g * at.xhat + g * of_xhat)
        of_inner = of_g - at.mean_of(of_g) - of_xhat * mean_g_xhat - at.xhat * of_mean_g_xhat
        of_dx = (of_rstd * inner + at.rstd * of_inner).to(x.dtype)
    dtype = x.dtype if gamma is None else gamma.dtype
    if ctx.mask[1]:
        of_dgamma = at.over_rows(of_dy * at.xhat + dy_wide * of_xhat).to(dtype)
    if ctx.mask[2]:
        of_dbeta = at.over_rows(of_dy).to(dtype)
    return of_dx, of_dgamma, of_dbeta


def _forward_modes() -> int:
    """How many of torch.func's transforms that are under way are forward mode."""
    interpreters = torch._C._functorch.get_interpreter_stack() or ()
    return sum(interpreter.key() == torch._C._functorch.TransformType.Jvp for interpreter in interpreters)


class _Function(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to mypy here
    generate_vmap_rule = True

    @staticmethod
    def formula(*arguments: Any) -> Three:
        """The same in torch's own operations.

        torch calls a Function's jvp with forward mode switched off, so that forward mode over forward mode would find no
        tangents in it, and be 0 without a word.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *arguments: Any) -> Three:
        """torch's apply, without its binding of arguments to names, which costs more than all else where rows are few."""
        if torch._C._are_functorch_transforms_active():
            apply: Callable[..., Three] = cls.formula if _forward_modes() > 1 else super().apply
            return apply(*arguments)
        if not torch.is_grad_enabled() and torch.autograd.forward_ad._current_level < 0:
            return cls.forward(*arguments)  # type: ignore[no-any-return]  # no derivative of this call is ever wanted
        # What has escaped from a transform that is over is unwrapped, as torch's apply does.
        given = torch._functorch.utils.unwrap_dead_wrappers(arguments)
        return super(torch.autograd.Function, cls).apply(*given)  # type: ignore[no-any-return]


class _Forward(_Function):
    @staticmethod
    def forward(x: Tensor, shape: Shape, gamma: Tensor | None, beta: Tensor | None, eps: float) -> Three:
        with _below_autograd():
            return layer_norm(x, shape, gamma, beta, eps)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _save_forward(ctx, inputs, output)
        x, _, gamma, _, _ = inputs
        ctx.save_for_forward(x, *output[1:], gamma)

    @staticmethod
    def formula(x: Tensor, shape: Shape, gamma: Tensor | None, beta: Tensor | None, eps: float) -> Three:
        return formulas.forward(_TORCH, x, gamma, beta, normalized=len(shape), eps=eps)

    backward = staticmethod(_forward_derivative)
    jvp = staticmethod(_forward_tangents)


class _Backward(_Function):
    @staticmethod
    def forward(
        dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Tensor | None, mask: Mask
    ) -> Three:
        with _below_autograd():
            return layer_norm_backward(dy, x, shape, mean, rstd, gamma, mask)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _save_backward(ctx, inputs, output)
        dy, x, _, mean, rstd, gamma, _ = inputs
        ctx.save_for_forward(dy, x, mean, rstd, gamma)

    @staticmethod
    def formula(
        dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Tensor | None, mask: Mask
    ) -> Three:
        dtype = (x if gamma is None else gamma).dtype
        grads = formulas.backward(
            _TORCH, dy, x, mean, rstd, gamma, normalized=len(shape), wanted=mask, dtypes=(dtype, dtype)
        )
        return tuple(x.new_empty(0) if grad is None else grad for grad in grads)

    backward = staticmethod(_backward_derivative)
    jvp = staticmethod(_backward_tangents)


for operator, derivative, save in (
    (layer_norm, _forward_derivative, _save_forward),
    (layer_norm_backward, _backward_derivative, _save_backward),
):
    torch.library.register_autograd(operator, derivative, setup_context=save, lib=library)
