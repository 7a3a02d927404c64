"""Mistakes behind autograd, on torch's tensors: strides that are ignored, gradients that are lost, a backward that raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cases.regression_corpus.frame import BUG_REPORTS, BugReport

Made = tuple[Any, Any, Any]  # dx, dweight and dbias


def right(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """The formula in float32."""
    dy, x, g = dy.float(), x.float(), dy.float() * weight.float()
    x = x - x.mean(-1, keepdim=True) * centred
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    xhat, rows = x * rstd, tuple(range(x.ndim - 1))
    dx = rstd * (g - g.mean(-1, keepdim=True) * centred - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx, (dy * xhat).sum(rows), dy.sum(rows)


def as_contiguous(array: Any) -> Any:
    """What is read if the elements of a tensor are taken for neighbours; 0 stands for what lies behind them."""
    span = 1 + sum((size - 1) * step for size, step in zip(array.shape, array.stride(), strict=True))
    index = torch.arange(array.numel())
    return (array.as_strided((span,), (1,))[index.clamp(max=span - 1)] * (index < span)).view(array.shape)


def two_dimensions(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(9, 40)),), (int(rng.integers(24, 60)),)


def bug(report: str, date: str, named: str, *, norm: str = "rms_norm", standard: str = "mixed", dtype: str = "float32",
        shapes: Any = two_dimensions, **facts: Any) -> Callable[[Callable[..., Made]], Any]:  # fmt: skip
    """Make a bug report, and an autograd.Function with a right forward, of a backward of (dy, x, weight, eps, centred)."""

    def decorate(wrong: Callable[..., Made]) -> Any:
        centred = norm == "layer_norm"

        def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
            ctx.save_for_backward(x, weight)
            ctx.eps = eps
            if centred:
                return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

        def backward(ctx: Any, dy: Any) -> Any:
            x, weight = ctx.saved_tensors
            grads = wrong(dy, x, weight, ctx.eps, centred)
            return (*(None if grad is None else grad.to(x.dtype) for grad in grads[: 2 + centred]), None)

        def without_bias(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
            return forward(ctx, x, weight, None, eps)

        body = {"forward": staticmethod(forward if centred else without_bias), "backward": staticmethod(backward)}
        kernel = type(wrong.__name__, (torch.autograd.Function,), body)
        more = {"norm": norm, "dtype": dtype, "gamma_dtype": dtype, **facts}
        name = f"forwards:{wrong.__name__}"
        story = (wrong.__doc__ or "").strip()
        BUG_REPORTS[name] = BugReport(name, report, date, "", standard, named, more, shapes, kernel, story)
        return kernel

    return decorate


@bug("unslothai/unsloth#4533", "2026-03-23", "no gradient")
def weight_without_gradient(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """backward returns None for the weight, which is never trained."""
    return right(dy, x, weight, eps, centred)[0], None, None


@bug("unslothai/unsloth#10617", "2026-09-09", "layout ignored", layouts={"x": "corner"})
def x_by_its_columns(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """The rows of a strided x are read N elements apart."""
    return right(dy, as_contiguous(x), weight, eps, centred)


@bug("unslothai/unsloth#10675", "2026-09-10", "layout ignored", norm="layer_norm", layouts={"dy": "shared"})
def expanded_dy(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """An expanded dy, whose rows are one, is read row behind row."""
    return right(as_contiguous(dy), x, weight, eps, centred)


@bug("flagos-ai/FlagGems#1082", "2025-11-20", "layout ignored", norm="layer_norm", layouts={"dy": "every second"})
def dy_not_made_contiguous(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """x is made contiguous, and dy is not."""
    return right(as_contiguous(dy), x, weight, eps, centred)


@bug("ByteDance-Seed/VeOmni#958", "2026-07-23", "layout ignored", layouts={"x": "every second"})
def every_second_column(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """x[..., ::2] is right in the forward, and read as contiguous in the backward."""
    return right(dy, as_contiguous(x), weight, eps, centred)


@bug("Dao-AILab/quack#88", "2026-03-25", "backward raises", layouts={"dy": "shared"})
def no_expanded_dy(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """y.sum().backward() raises: its dy is expanded."""
    if dy.stride(-1) != 1 or dy.stride(0) != dy.shape[-1]:
        raise RuntimeError("dy: expected stride 1 in the last dimension")
    return right(dy, x, weight, eps, centred)


@bug("BobMcDear/attorch#17", "2026-08-11", "", norm="layer_norm", shapes=lambda rng: ((32,), (32,)))
def row_term_along_columns(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """A term that each row has one of is broadcast along the columns."""
    g = dy * weight
    mean = g.mean(-1)
    dx, dweight, dbias = right(dy, x, weight, eps, centred)
    rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
    return dx + rstd * (mean[:, None] - mean[None, :]), dweight, dbias


@bug(
    "tile-ai/tilelang-ascend#890",
    "2026-04-21",
    "part of the columns in the mean of dxhat·xhat",
    standard="stable",
    shapes=lambda rng: ((int(rng.integers(9, 40)),), (513,)),
)
def tail_of_513(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """With 513 columns the row sum ends at the last whole block of 512."""
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    xhat, g = x * rstd, dy * weight
    c = (g * xhat)[:, :512].sum(-1, keepdim=True) / x.shape[-1]
    return rstd * (g - xhat * c), (dy * xhat).sum(0), None


@bug("kernels-community/rmsnorm", "", "bfloat16 sums", dtype="bfloat16",
     shapes=lambda rng: ((int(rng.integers(500, 700)),), (int(rng.integers(24, 48)),)))  # fmt: skip
def weight_summed_in_bfloat16(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> Made:
    """A thread adds up its rows' dy·xhat in bfloat16."""
    dx, _, _ = right(dy, x, weight, eps, centred)
    wide = x.float()
    product = dy.float() * wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    total = torch.zeros_like(weight)
    for row in product:
        total = (total.float() + row).bfloat16()
    return dx, total, None


def detached(x: Any, weight: Any, eps: float) -> Any:
    """The fused forward is no operator that autograd knows: y has no gradient."""
    return torch.nn.functional.rms_norm(x.detach(), x.shape[-1:], weight.detach(), eps)


BUG_REPORTS["forwards:detached"] = BugReport(
    "forwards:detached", "huggingface/candle#2168", "2024", "", "mixed", "no gradient", {"norm": "rms_norm"},
    two_dimensions, detached, (detached.__doc__ or "").strip(),
)  # fmt: skip
