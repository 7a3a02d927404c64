"""layer_norm and its family, a backward and modules, with the names and arguments that torch's users know."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from lngrad.core import fallbacks
from lngrad.core.problem import Grads, epsilon, refuse_array
from lngrad.errors import DtypeError, ShapeError
from lngrad.torch import derivatives, native, operators
from lngrad.typing import Tensor

_MAX_DIMENSIONS = 8  # of the core's arrays


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int] | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dim: int | None = None,
) -> Tensor:
    """torch.nn.functional.layer_norm, with the statistics of 16-bit inputs kept in float32.

    Args:
        input: (*A, *R): float16, bfloat16, float32 or float64.
        normalized_shape: R.
        weight, bias: (*R) in any of these dtypes, or None. One in float64, or input, has the call computed in it.
        eps: Added to the variance.
        dim: Normalize over this dimension alone, with a normalized_shape of None: 1 for channels first. input is read where it
            lies, and the result is a view with that dimension innermost in memory.

    Returns:
        (*A, *R) in input's dtype, contiguous. Differentiable to any order.

    Raises:
        ShapeError, DtypeError, NumberError: An argument breaks a rule; each has its usual Python base.
        BackendUnavailable: No backend serves input's device.
    """
    if not (type(eps) is float and 0.0 <= eps < inf):
        eps = epsilon(eps)
    if dim is not None:
        moved, size = input.movedim(dim, -1), _size(input, dim, normalized_shape)
        return layer_norm(moved, size, weight, bias, eps).movedim(-1, dim)
    compiling = torch.compiler.is_compiling()
    finalizing = not compiling and sys.is_finalizing()
    if not compiling and not finalizing and native.module is not None:  # it takes no tensors but torch's own
        y = native.module.norm(input, normalized_shape, weight, bias, eps)
        if y is not NotImplemented:
            return y
    # At the end torch has let go of our operators, and Python of our memory.
    is_left_to_torch = finalizing or left_to_torch("layer_norm", input)
    # Of traces of torch.fx, and tensors of other libraries.
    if not is_left_to_torch and has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            layer_norm, (input, weight, bias), input, normalized_shape, weight=weight, bias=bias, eps=eps
        )
    shape, traced = _sizes(normalized_shape), not is_left_to_torch and (compiling or torch.jit.is_tracing())
    if is_left_to_torch or (traced and torch.onnx.is_in_onnx_export()):  # which has an operator of its own for it
        return torch.nn.functional.layer_norm(input, shape, weight, bias, eps)
    if traced:
        return operators.layer_norm(input, shape, weight, bias, eps)[0]
    return derivatives.differentiable_forward(input, shape, weight, bias, eps)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int] | None,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
    dim: int | None = None,
) -> Tensor:
    """torch.nn.functional.rms_norm: y = input·rstd·(offset + weight), rstd = 1/sqrt(mean of input² + eps), rounded once.

    Args:
        input: (*A, *R): float16, bfloat16, float32 or float64.
        normalized_shape: R.
        weight: (*R) in any of these dtypes, or None; or one for each sample, (*S, 1, …, 1, *R). In float64, or with input in
            it, the call is computed in it.
        eps: Added to the mean of the squares. None: torch's, the machine epsilon of float32, or of float64 if input is.
        offset: Added to weight, or to the 1 in its place: 1 for weights that are stored around zero, as Gemma's.
        dim: As for layer_norm.

    Returns:
        (*A, *R) in input's dtype, contiguous. Differentiable to any order.

    Raises:
        ShapeError, DtypeError, NumberError: An argument breaks a rule; each has its usual Python base.
        BackendUnavailable: No backend serves input's device.
    """
    if dim is not None:
        moved, size = input.movedim(dim, -1), _size(input, dim, normalized_shape)
        return rms_norm(moved, size, weight, eps, offset=offset).movedim(-1, dim)
    if has_torch_function_variadic(input, weight):
        if left_to_torch("norm", input):
            return _by_torch(input, normalized_shape, weight, None, eps, False, offset)
        return handle_torch_function(
            rms_norm, (input, weight), input, normalized_shape, weight=weight, eps=eps, offset=offset
        )
    return _norm(input, normalized_shape, weight, None, eps, None, False, offset)


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """rms_norm of total = input + residual, and the total: (y, total), (*A, *R) in input's dtype and in residual's.

    The total is rounded to residual's dtype before it is normalized. Gradients go to input, residual and weight, through y and
    through total.

    Args:
        input, residual: (*A, *R), the same shape and dtype; a residual stream may be kept in float32 beside 16 bits.
        normalized_shape, weight, eps, offset: As for rms_norm.

    Raises:
        As rms_norm.
    """
    if has_torch_function_variadic(input, residual, weight):
        return handle_torch_function(  # type: ignore[no-any-return]
            add_rms_norm, (input, residual, weight), input, residual, normalized_shape, weight=weight, eps=eps,
            offset=offset,
        )  # fmt: skip
    return _norm(input, normalized_shape, weight, None, eps, residual, False, offset)  # type: ignore[no-any-return]


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """layer_norm of total = input + residual, and the total: (y, total), (*A, *R) in input's dtype and in residual's.

    The total is rounded to residual's dtype before it is normalized. Gradients go to input, residual, weight and bias, through
    y and through total.

    Args:
        input, residual: (*A, *R), the same shape and dtype; a residual stream may be kept in float32 beside 16 bits.
        normalized_shape, weight, bias, eps: As for layer_norm.

    Raises:
        As layer_norm.
    """
    if has_torch_function_variadic(input, residual, weight, bias):
        return handle_torch_function(  # type: ignore[no-any-return]
            add_layer_norm, (input, residual, weight, bias), input, residual, normalized_shape, weight=weight, bias=bias,
            eps=eps,
        )  # fmt: skip
    return _norm(input, normalized_shape, weight, bias, eps, residual, True, 0.0)  # type: ignore[no-any-return]


def modulated_layer_norm(input: Tensor, scale: Tensor, shift: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Adaptive layer normalization (AdaLN): layer_norm of the last axis, times 1 + scale, plus shift, rounded once.

    Args:
        input: (*A, N): float16, bfloat16, float32 or float64.
        scale, shift: One row for each sample, in any of these dtypes: (*S, N) or (*S, 1, …, 1, N), S being the first
            dimensions of A, as (B, N) and (B, 1, N) for (B, T, N); views, as of a chunk, are read where they lie. No shift: 0.
        eps: Added to the variance.

    Returns:
        (*A, N) in input's dtype, contiguous. Differentiable to any order; gradients of scale and shift are summed over the rows
        of each sample, and have the bits of a call of its own. On a GPU composed of torch's operations.

    Raises:
        As layer_norm.
    """
    if has_torch_function_variadic(input, scale, shift):
        return handle_torch_function(modulated_layer_norm, (input, scale, shift), input, scale, shift=shift, eps=eps)
    parameters = [scale, shift]
    for k, parameter in enumerate(parameters):
        if parameter is not None and 1 < parameter.ndim < input.ndim:
            parameters[k] = parameter.reshape(
                *parameter.shape[:-1], *(1,) * (input.ndim - parameter.ndim), parameter.shape[-1]
            )
    gamma, beta = parameters
    return _norm(input, input.shape[-1:], gamma, beta, eps, None, True, 1.0)


def gated_rms_norm(
    input: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    norm_before_gate: bool = True,
    group_size: int | None = None,
    offset: float = 0.0,
) -> Tensor:
    """rms_norm of the last axis, times silu(gate), rounded once; or of input·silu(gate), as in Mamba 2.

    Args:
        input, gate: (*A, N), the same shape and dtype: float16, bfloat16, float32 or float64.
        weight: (N,) in any of these dtypes, or None.
        eps, offset: As for rms_norm.
        norm_before_gate: False: the gate is multiplied with input, and the product normalized.
        group_size: Normalize each so many columns by themselves, a divisor of N. None: all.

    Returns:
        (*A, N) in input's dtype, contiguous. Differentiable to any order; derivatives of the gradients are composed of torch's
        operations. On the CPU alone.

    Raises:
        As rms_norm.
    """
    if has_torch_function_variadic(input, gate, weight):
        return handle_torch_function(
            gated_rms_norm, (input, gate, weight), input, gate, weight, eps, norm_before_gate=norm_before_gate,
            group_size=group_size, offset=offset,
        )  # fmt: skip
    _refuse_layout("input", input)
    N = input.shape[-1]
    numbers = operators.epsilon(input) if eps is None else epsilon(eps), offset, norm_before_gate
    if group_size in (None, N):
        return derivatives.differentiable_gated(input, _sizes(N), weight, gate, *numbers)
    if group_size <= 0 or N % group_size:
        raise ShapeError(f"group_size: expected a divisor of {N}, got {group_size}")
    x, z = (tensor.unflatten(-1, (-1, group_size)).movedim(-2, 0) for tensor in (input, gate))
    if weight is not None:
        weight = weight.reshape(-1, *(1,) * (x.ndim - 2), group_size)
    y = derivatives.differentiable_gated(x, [group_size], weight, z, *numbers)
    return y.movedim(0, -2).flatten(-2)


def _norm(
    x: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float | None,
    residual: Tensor | None, centred: bool, offset: float,
) -> Any:  # fmt: skip
    """y, or y and the total with a residual; in an export to ONNX by torch's own functions or elementary operations."""
    if not (type(eps) is float and 0.0 <= eps < inf):
        eps = operators.epsilon(x) if eps is None and not centred else epsilon(eps)
    if residual is not None:
        _refuse_layout("input", x)
    if not torch.compiler.is_compiling() and native.module is not None:
        result = native.module.norm(x, normalized_shape, weight, bias, eps, residual, centred, offset)
        if result is not NotImplemented:
            return result
    exporting = torch.onnx.is_in_onnx_export()
    # The new exporter has ONNX's own operators for torch's functions; the old one has none for RMS normalization.
    if residual is None and ((exporting and not torch.jit.is_tracing()) or left_to_torch("norm", x)):
        return _by_torch(x, normalized_shape, weight, bias, eps, centred, offset)
    shape: Any = _sizes(normalized_shape)
    switches = operators.Switches(residual, centred, offset)
    if exporting:
        y, _, _, total = operators.composed_forward(x, shape, weight, bias, eps, *switches)
    elif torch.jit.is_tracing():
        y, _, _, total = operators.norm(x, shape, weight, bias, eps, *switches)
    else:
        y, _, _, total = derivatives.differentiable_forward(x, shape, weight, bias, eps, switches)
    return y if residual is None else (y, total)


def left_to_torch(name: str, x: Tensor) -> bool:
    """Whether x is left to torch's own operators, which alone take it; the fallback is counted."""
    if not isinstance(x, torch.Tensor):
        return False
    compiling = torch.compiler.is_compiling()
    if not operators.is_dense(x):
        reason = "x is nested, sparse, quantized or in another layout"
    elif x.ndim > _MAX_DIMENSIONS:
        reason = f"x has more than {_MAX_DIMENSIONS} dimensions"
    elif not compiling and derivatives.transforms("Functionalize"):
        reason = "torch.func.functionalize is under way"
    else:
        return False
    if not compiling:
        fallbacks.count(name, reason)
    return True


def _refuse_layout(name: str, x: Tensor) -> None:
    """Refuse what torch's own operators alone take, where it has none to leave it to."""
    if isinstance(x, torch.Tensor) and not operators.is_dense(x):
        got = "a nested one" if x.is_nested else f"layout {x.layout}, {x.dtype}"
        raise DtypeError(f"{name}: expected a dense tensor of floats, got {got}")


def _by_torch(
    x: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float | None,
    centred: bool, offset: float,
) -> Tensor:  # fmt: skip
    """By torch's own functions."""
    shape = _sizes(normalized_shape)
    if offset:
        weight = offset + (torch.ones(shape, dtype=x.dtype, device=x.device) if weight is None else weight)
    if operators.is_of_samples(weight, shape):
        y = _by_torch(x, shape, None, None, eps, centred, 0.0) * weight
        return y if bias is None else y + bias
    if centred:
        return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)
    return torch.nn.functional.rms_norm(x, shape, weight, eps)


def _size(x: Tensor, dim: int, normalized_shape: Any) -> int:
    """Of the dimension that is normalized alone."""
    if normalized_shape is not None:
        raise ShapeError(f"dim: expected a normalized_shape of None with it, got {normalized_shape}")
    return x.shape[dim]  # type: ignore[no-any-return]


def _sizes(normalized_shape: Any) -> list[int]:
    """As a list. torch.jit.trace makes tensors of a tensor's sizes, which no operator but torch's own takes for numbers."""
    if isinstance(normalized_shape, (int, np.integer)):
        return [int(normalized_shape)]
    refuse_array(normalized_shape, "weight")
    sizes = [normalized_shape] if isinstance(normalized_shape, torch.Tensor) else list(normalized_shape)
    if torch.Tensor not in map(type, sizes):
        return sizes
    with warnings.catch_warnings():  # that they are constants of the trace: so is the weight's shape
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return [int(size) for size in sizes]


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
    grads = derivatives.differentiable_backward(dy, x, shape, mean, rstd, gamma, mask)
    return Grads(*(grad if wanted else None for grad, wanted in zip(grads, mask, strict=True)))


def left_to_inductor(module: Any, x: Any) -> bool:
    """Whether a module that patch has turned has its own formula in code of torch.compile, where Inductor fuses it."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting() or module.lngrad_compiled == "lngrad":
        return False
    return module.lngrad_compiled == "torch" or bool(x.is_cuda)


class LayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]  # torch is Any to mypy here
    """torch.nn.LayerNorm whose forward and backward are lngrad's: the same constructor, state_dict and repr."""

    lngrad_compiled = "lngrad"  # as patch's compiled

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():  # TorchScript compiles this branch alone
            return torch.ops.lngrad.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)[0]
        if left_to_inductor(self, input):
            return super().forward(input)
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _quantize_as_torchs() -> None:
    """Let torch.ao's quantization of eager models, which finds modules by their class itself, find ours."""
    mappings = sys.modules.get("torch.ao.quantization.quantization_mappings")
    classes = getattr(mappings, "DEFAULT_STATIC_QUANT_MODULE_MAPPINGS", {})
    if torch.nn.LayerNorm in classes:
        classes[LayerNorm] = classes[torch.nn.LayerNorm]


_quantize_as_torchs()


class RMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]  # torch is Any to mypy here
    """torch.nn.RMSNorm whose forward and backward are lngrad's: the same constructor, state_dict and repr.

    Args:
        normalized_shape, eps, elementwise_affine, device, dtype: As torch's.
        offset: Added to weight, which begins as 1 - offset: with 1 it is stored around zero, as Gemma's.
    """

    offset: float = 0.0  # of torch's own modules, which patch turns
    lngrad_compiled = "lngrad"  # as patch's compiled
    __constants__ = (*torch.nn.RMSNorm.__constants__, "offset")

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, device: Any = None,
        dtype: Any = None, *, offset: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        if offset:
            self.offset = float(offset)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to 1 - offset."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():  # TorchScript compiles this branch alone
            eps = self.eps
            if eps is None:
                eps = 2.220446049250313e-16 if input.dtype == torch.float64 else 1.1920928955078125e-07
            return torch.ops.lngrad.norm(
                input, self.normalized_shape, self.weight, None, eps, None, False, self.offset
            )[0]
        if left_to_inductor(self, input):
            return super().forward(input)
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, offset=getattr(self, "offset", 0.0))

    def extra_repr(self) -> str:
        """torch's, and the offset if there is one."""
        return str(super().extra_repr()) + (f", offset={self.offset}" if self.offset else "")
