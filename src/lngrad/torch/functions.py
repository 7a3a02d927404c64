"""layer_norm, its backward and a module, with the names and arguments that torch's users know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from lngrad.core.problem import Grads
from lngrad.torch import native, operators
from lngrad.typing import Tensor


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.layer_norm, with the statistics of 16-bit inputs kept in float32.

    Args:
        input: (*A, *R): float16, bfloat16, float32 or float64.
        normalized_shape: R.
        weight, bias: (*R) in any of these dtypes, or None. One in float64, or input, has the call computed in it.
        eps: Added to the variance.

    Returns:
        (*A, *R) in input's dtype, contiguous. Differentiable to any order.

    Raises:
        ShapeError, DtypeError: An argument breaks a rule; both have their usual Python base, ValueError and TypeError.
        BackendUnavailable: No backend serves input's device.
    """
    if has_torch_function_variadic(input, weight, bias):  # torch.fx traces, and tensors of other libraries
        return handle_torch_function(
            layer_norm, (input, weight, bias), input, normalized_shape, weight=weight, bias=bias, eps=eps
        )
    compiling = torch.compiler.is_compiling()
    if not compiling and native.module is not None:
        y = native.module.layer_norm(input, normalized_shape, weight, bias, eps)
        if y is not NotImplemented:
            return y
    shape = _sizes(normalized_shape)
    if compiling or torch.jit.is_tracing():
        return _traced(input, shape, weight, bias, eps)
    return operators.differentiable_forward(input, shape, weight, bias, eps)[0]


def _sizes(normalized_shape: int | Sequence[int]) -> list[int]:
    """As a list. torch.jit.trace makes tensors of a tensor's sizes, which no operator but torch's own takes for numbers."""
    one: Any = normalized_shape
    sizes = [one] if isinstance(one, int) or (isinstance(one, torch.Tensor) and not one.ndim) else list(one)
    if not any(isinstance(size, torch.Tensor) for size in sizes):
        return sizes
    with warnings.catch_warnings():  # that they are constants of the trace: so is the weight's shape
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return [int(size) for size in sizes]


def _traced(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The operator; in an export to ONNX torch's own function, which becomes LayerNormalization."""
    if torch.onnx.is_in_onnx_export():
        return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)
    return operators.layer_norm(x, shape, weight, bias, eps)[0]


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None = None,
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
    shape = _sizes(normalized_shape)
    mask = [bool(wanted) for wanted in output_mask]
    grads = operators.differentiable_backward(dy, x, shape, mean, rstd, gamma, mask)
    return Grads(*(grad if wanted else None for grad, wanted in zip(grads, mask, strict=True)))


class LayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]  # torch is Any to mypy here
    """torch.nn.LayerNorm whose forward and backward are lngrad's: the same constructor, state_dict and repr."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():  # TorchScript compiles this branch alone
            return torch.ops.lngrad.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)[0]
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
