"""Forwards that a test has checked by name: right ones, and for each a wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import layer_norm, rms_norm


class Norm(torch.nn.Module):
    """RMS normalization in torch's own operations."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, hidden_states.shape[-1:], self.weight, self.variance_epsilon)


class WrongNorm(Norm):
    """Its factor rstd is a constant for autograd."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        square = hidden_states.float().pow(2).mean(-1, keepdim=True)
        rstd = torch.rsqrt(square + self.variance_epsilon).detach()
        return (hidden_states * rstd).to(hidden_states.dtype) * self.weight


norm, wrong_norm = Norm(48), WrongNorm(48)


def plain(t: torch.Tensor, a: torch.Tensor, c: torch.Tensor, d: float) -> torch.Tensor:
    return layer_norm(t, a.shape, a, c, d)


def wrong_plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return layer_norm(x, weight.shape, weight.detach(), bias, eps) + 0 * weight


def added(
    x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return rms_norm(total, gamma.shape, gamma, eps), total


def dtotal_for_x_alone(
    x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return rms_norm(x + residual, gamma.shape, gamma, eps), x + residual.detach()


class OfItsSize(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.ones(80)), torch.nn.Parameter(torch.zeros(80))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (80,), self.weight, self.bias)


def in_float32(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Of any dtype; its backward asks how many rows there are, which no columns leave open."""
    y = rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)
    if y.requires_grad:
        y.register_hook(lambda dy: dy.reshape(-1, x.shape[-1]).reshape(dy.shape))
    return y


def added_and_gated(x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return rms_norm(x + residual, gamma.shape, gamma) * torch.nn.functional.silu(gate)


def modulated_by_the_first_sample(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> torch.Tensor:
    scale, shift = (array[:1] if array.ndim > 1 else array for array in (scale, shift))
    return (layer_norm(x.float(), x.shape[-1:], eps=eps) * (1 + scale.float()) + shift).to(x.dtype)


class Written(torch.nn.Module):
    """Layer normalization with an epsilon in its formula."""

    correction, factor, in_root, outside = 0, 1.0, 1e-4, 0.0

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.ones(n)), torch.nn.Parameter(torch.zeros(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(wide, -1, correction=self.correction, keepdim=True)
        root = torch.sqrt(var + self.in_root) + self.outside
        return (self.factor * (wide - mean) / root * self.weight + self.bias).to(x.dtype)


class WrittenLarge(Written):
    in_root = 0.1


class WrittenOdd(Written):
    in_root = 6.4e-5


class WrittenNone(Written):
    in_root = 0.0


class WrongVariance(Written):
    """Its variance is divided by N - 1."""

    correction = 1


class WrongFactor(Written):
    factor = 1.5


class WrongOutside(Written):
    """Its epsilon is added to the deviation."""

    in_root, outside = 0.0, 1e-5


class _DeepNorm(torch.autograd.Function):
    alpha_of_dx, alpha_of_residual = True, False

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        alpha: float,
        eps: float,
    ) -> torch.Tensor:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        total = (alpha * x.to(dtype) + residual.to(dtype)).to(x.dtype).to(dtype)
        centred = total - total.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(centred * rstd, weight.to(dtype), rstd)
        ctx.alpha, ctx.dtypes = alpha, (x.dtype, weight.dtype)
        return (centred * rstd * weight.to(dtype) + bias.to(dtype)).to(x.dtype)

    @classmethod
    def backward(cls, ctx: Any, dy: torch.Tensor) -> Any:
        (xhat, weight, rstd), (dtype, of_weight) = ctx.saved_tensors, ctx.dtypes
        dy = dy.to(rstd.dtype)
        dxhat, rows = dy * weight, tuple(range(dy.ndim - 1))
        dx = rstd * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
        times = ctx.alpha if cls.alpha_of_dx else 1.0
        return (
            (times * dx).to(dtype),
            (ctx.alpha * dx if cls.alpha_of_residual else dx).to(dtype),
            (dy * xhat).sum(rows).to(of_weight),
            dy.sum(rows).to(of_weight),
            None,
            None,
        )


class _ForgotAlpha(_DeepNorm):
    alpha_of_dx = False


class _AlphaInBoth(_DeepNorm):
    alpha_of_residual = True


class _Raises(_DeepNorm):
    @classmethod
    def backward(cls, ctx: Any, dy: torch.Tensor) -> Any:
        return {}["rstd"]


def deep_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    alpha: float = 1.7,
    eps: float = 1e-5,
) -> Any:
    return _DeepNorm.apply(x, residual, weight, bias, alpha, eps)


def deep_norm_with_alpha_in_both(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, alpha: float, eps: float = 1e-5
) -> Any:
    return _AlphaInBoth.apply(x, residual, weight, bias, alpha, eps)


def raising(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, alpha: float, eps: float = 1e-5
) -> Any:
    return _Raises.apply(x, residual, weight, bias, alpha, eps)


def a_total_that_is_detached(
    x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    y, total = added(x, residual, gamma, eps)
    return y, total.detach()


def deep_norm_without_alpha_in_dx(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, alpha: float, eps: float = 1e-5
) -> Any:
    return _ForgotAlpha.apply(x, residual, weight, bias, alpha, eps)


def after_the_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> Any:
    return _DeepNorm.apply(x, residual, weight, bias, 1.0, eps)


def gated(x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide, gate = x.float(), z.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    return (y * gate * torch.sigmoid(gate)).to(x.dtype)


class _NoSlope(torch.autograd.Function):
    """silu, with its sigmoid for a derivative."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate)
        return gate * torch.sigmoid(gate)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        return dy * torch.sigmoid(ctx.saved_tensors[0])


class OfGated(torch.nn.Module):
    """As Mamba 2's, whose gate has a default."""

    silu = staticmethod(torch.nn.functional.silu)

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide if gate is None else wide * self.silu(gate.float())
        y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * y).to(hidden_states.dtype)


class WrongOfGated(OfGated):
    silu = staticmethod(_NoSlope.apply)


class Function(torch.autograd.Function):
    """RMS normalization with a backward of its own, for whole blocks of contiguous memory and one dtype alone."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype != w.dtype:
            raise ValueError("expected one dtype")
        if x.shape[-1] % 32:
            raise RuntimeError(f"expected a multiple of 32, got {x.shape[-1]}")
        if not x.is_contiguous():
            raise ValueError("expected contiguous memory")
        ctx.save_for_backward(x, w)
        ctx.eps = eps
        return rms_norm(x, w.shape, w, eps)

    @classmethod
    def backward(cls, ctx: Any, dy: torch.Tensor) -> Any:
        x, w = (saved_tensor.float() for saved_tensor in ctx.saved_tensors)
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        xhat, dxhat = x * rstd, dy * w
        dx = rstd * (dxhat - cls.factor * xhat * (dxhat * xhat).mean(-1, keepdim=True))
        dw = (dy * xhat).flatten(0, -2).sum(0) if dy.ndim > 1 else dy * xhat
        return dx.to(dy.dtype), dw.to(dy.dtype), None


class ForwardTwiceTooLarge(Function):
    """Its gradients are right."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        return 2 * Function.forward(ctx, x, w, eps)


class WrongFunction(Function):
    """It subtracts the row's mean twice."""

    factor = 2.0


class Raises(Function):
    """Its backward is for contiguous gradients."""

    @classmethod
    def backward(cls, ctx: Any, dy: torch.Tensor) -> Any:
        raise RuntimeError("expected a contiguous gradient")


def contiguous(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if not x.is_contiguous():
        raise ValueError("expected contiguous memory")
    wide = torch.promote_types(x.dtype, weight.dtype)  # torch warns of two dtypes
    return rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def no_gradient(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x.detach(), weight.shape, weight.detach(), eps)


class Other(torch.nn.Module):
    """No normalization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


def nothing(x: torch.Tensor) -> None:
    return None


def refuses_all(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    raise ValueError("not today")


def rms_backward(dy: Any, x: Any, weight: Any, eps: float) -> Any:
    """A backward on NumPy arrays that names gamma as torch does."""
    wide = x.astype(float)
    rstd = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    dxhat = dy * weight.astype(float)
    dx = rstd * (dxhat - wide * rstd**2 * (dxhat * wide).mean(-1, keepdims=True))
    return dx, (dy * wide * rstd).reshape(-1, x.shape[-1]).sum(0)
