"""The operators lngrad::layer_norm and lngrad::layer_norm_backward: schemas, kernels, fakes, batching.

Opaque to torch.compile and torch.export, hence the same bits compiled as eager.
"""

from __future__ import annotations

from typing import Any

import torch

import lngrad
from lngrad.core.arrays import Output
from lngrad.core.problem import Problem
from lngrad.torch import calls, native

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


_forward = calls.forward_calls(calls.accumulator_of)
_backward = calls.backward_calls(_gradient_dtype)
native.register("prepare_forward", calls.prepare_forward(calls.accumulator_of))
native.register("prepare_backward", calls.prepare_backward(_gradient_dtype))


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
