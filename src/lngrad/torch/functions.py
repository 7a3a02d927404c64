"""layer_norm, its backward and a module, with the names and arguments that torch's users know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lngrad.problem import Grads
from lngrad.torch import derivatives

__all__ = ["LayerNorm", "layer_norm", "layer_norm_backward", "patch", "unpatch"]


def layer_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """torch.nn.functional.layer_norm, with the statistics of 16-bit inputs kept in float32.

    Args:
        input: (*A, *R): float16, bfloat16, float32 or float64.
        normalized_shape: R.
        weight, bias: (*R) in any of these dtypes but float64, unless input has it, or None.
        eps: Added to the variance.

    Returns:
        (*A, *R) in input's dtype, contiguous. Differentiable to any order.

    Raises:
        ShapeError, DtypeError: An argument breaks a rule; both have their usual Python base, ValueError and TypeError.
        BackendUnavailable: No backend serves input's device.
    """
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    return derivatives.layer_norm(input, shape, weight, bias, eps)[0]


def layer_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> Grads:
    """lngrad.layer_norm_backward as an operator: it can be compiled, exported, batched and differentiated.

    Args:
        dy, x: (*A, *R), the same shape and dtype.
        mean, rstd: One element per row.
        gamma: (*R) or None.
        normalized_shape: R. None: gamma's shape, or the last axis.
        output_mask: Which of dx, dgamma, dbeta are wanted; the others are None.
    """
    if normalized_shape is None:
        normalized_shape = x.shape[-1:] if gamma is None else gamma.shape
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    mask = [bool(wanted) for wanted in output_mask]
    grads = derivatives.layer_norm_backward(dy, x, shape, mean, rstd, gamma, mask)
    return Grads(*(grad if wanted else None for grad, wanted in zip(grads, mask, strict=True)))


class LayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]  # torch is Any to mypy here
    """torch.nn.LayerNorm whose forward and backward are lngrad's: the same constructor, state_dict and repr."""

    def forward(self, input: Any) -> Any:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def patch(model: Any) -> int:
    """Turn every torch.nn.LayerNorm in a model, itself included, into a LayerNorm; parameters and hooks stay as they are.

    Subclasses of torch.nn.LayerNorm are left alone: what they do differently is not known here.

    Returns:
        How many were turned.
    """
    return _turn(model, torch.nn.LayerNorm, LayerNorm)


def unpatch(model: Any) -> int:
    """Turn every LayerNorm in a model back into a torch.nn.LayerNorm; returns how many."""
    return _turn(model, LayerNorm, torch.nn.LayerNorm)


def _turn(model: Any, old: type, new: type) -> int:
    modules = [module for module in model.modules() if type(module) is old]
    for module in modules:
        module.__class__ = new
    return len(modules)
