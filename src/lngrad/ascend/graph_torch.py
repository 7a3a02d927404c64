"""The graph ops as torch custom ops, so that torch.export and torch.compile capture them, with dynamic shapes too.

Importing this module defines ``torch.ops.lngrad.layer_norm_grad`` and ``torch.ops.lngrad.layer_norm_grad_v3``; a saved
graph that has them needs the import before it is loaded. An op of torch can't return None: where an output is masked
off, the op returns a tensor without elements, and the functions of this module None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lngrad.ascend.graph.layer_norm_grad import ALL, LayerNormGrad, LayerNormGradV3, PdOutputs

__all__ = ["layer_norm_grad", "layer_norm_grad_v3"]


def _op(
    dy: Any,
    x: Any,
    variance: Any,
    mean: Any,
    gamma: Any,
    output_mask: Sequence[bool] = ALL,
    epsilon: float | None = None,
    pd_gamma_dtype: Any = None,
) -> tuple[Any, ...]:
    results = LayerNormGrad(
        dy, x, variance, mean, gamma, output_mask=output_mask, epsilon=epsilon, pd_gamma_dtype=pd_gamma_dtype
    )
    return _without_none(results, x)


def _op_v3(
    dy: Any,
    x: Any,
    rstd: Any,
    mean: Any,
    gamma: Any,
    output_mask: Sequence[bool] = ALL,
    pd_gamma_dtype: Any = None,
) -> tuple[Any, ...]:
    results = LayerNormGradV3(dy, x, rstd, mean, gamma, output_mask=output_mask, pd_gamma_dtype=pd_gamma_dtype)
    return _without_none(results, x)


def _without_none(results: PdOutputs, x: Any) -> tuple[Any, ...]:
    return tuple(x.new_empty(0) if result is None else result for result in results)


def _fake(
    dy: Any,
    x: Any,
    variance: Any,
    mean: Any,
    gamma: Any,
    output_mask: Sequence[bool] = ALL,
    epsilon: float | None = None,
    pd_gamma_dtype: Any = None,
) -> tuple[Any, ...]:
    outputs = LayerNormGrad.outputs(
        dy, x, variance, mean, gamma, output_mask=output_mask, pd_gamma_dtype=pd_gamma_dtype
    )
    return _promised(outputs, x)


def _fake_v3(
    dy: Any,
    x: Any,
    rstd: Any,
    mean: Any,
    gamma: Any,
    output_mask: Sequence[bool] = ALL,
    pd_gamma_dtype: Any = None,
) -> tuple[Any, ...]:
    outputs = LayerNormGradV3.outputs(dy, x, rstd, mean, gamma, output_mask=output_mask, pd_gamma_dtype=pd_gamma_dtype)
    return _promised(outputs, x)


def _promised(outputs: PdOutputs, x: Any) -> tuple[Any, ...]:
    """Tensors without data, of the shapes and dtypes that the op will return."""
    return tuple(
        x.new_empty(0) if output is None else x.new_empty(output.shape, dtype=getattr(torch, output.dtype))
        for output in outputs
    )


def _define(name: str, schema: str, compute: Any, fake: Any) -> None:
    torch.library.custom_op(f"lngrad::{name}", mutates_args=(), schema=schema)(compute).register_fake(fake)


_define(
    "layer_norm_grad",
    "(Tensor dy, Tensor x, Tensor variance, Tensor mean, Tensor gamma, bool[3] output_mask=[True, True, True], "
    "float? epsilon=None, ScalarType? pd_gamma_dtype=None) -> (Tensor, Tensor, Tensor)",
    _op,
    _fake,
)
_define(
    "layer_norm_grad_v3",
    "(Tensor dy, Tensor x, Tensor rstd, Tensor mean, Tensor gamma, bool[3] output_mask=[True, True, True], "
    "ScalarType? pd_gamma_dtype=None) -> (Tensor, Tensor, Tensor)",
    _op_v3,
    _fake_v3,
)


def layer_norm_grad(
    dy: Any,
    x: Any,
    variance: Any,
    mean: Any,
    gamma: Any,
    *,
    output_mask: Sequence[bool] = ALL,
    epsilon: float | None = None,
    pd_gamma_dtype: Any = None,
) -> PdOutputs:
    """``lngrad.ascend.graph.layer_norm_grad.LayerNormGrad`` of torch tensors, as one node of a captured graph.

    Args:
        dy, x, variance, mean, gamma, output_mask, epsilon: as there.
        pd_gamma_dtype: a torch dtype, or None for gamma's.
    """
    results = torch.ops.lngrad.layer_norm_grad(dy, x, variance, mean, gamma, list(output_mask), epsilon, pd_gamma_dtype)
    return _with_none(results, output_mask)


def layer_norm_grad_v3(
    dy: Any,
    x: Any,
    rstd: Any,
    mean: Any,
    gamma: Any,
    *,
    output_mask: Sequence[bool] = ALL,
    pd_gamma_dtype: Any = None,
) -> PdOutputs:
    """``lngrad.ascend.graph.layer_norm_grad.LayerNormGradV3`` of torch tensors, as one node of a graph; see layer_norm_grad."""
    results = torch.ops.lngrad.layer_norm_grad_v3(dy, x, rstd, mean, gamma, list(output_mask), pd_gamma_dtype)
    return _with_none(results, output_mask)


def _with_none(results: tuple[Any, ...], output_mask: Sequence[bool]) -> PdOutputs:
    return PdOutputs(*(one if wanted else None for one, wanted in zip(results, output_mask, strict=True)))
