"""The graph ops as torch custom ops, so that torch.export and torch.compile capture them, with dynamic shapes too.

Importing this module defines ``torch.ops.lngrad.layer_norm_grad`` and ``torch.ops.lngrad.layer_norm_grad_v3``; a
saved graph that has them needs the import before it is loaded. An op of torch can't return None: where an output is
masked off, the op returns a tensor without elements, and the functions of this module None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch

from lngrad.typing import Tensor
from lngrad_ascend.graph.layer_norm_grad import ALL, GraphOp, LayerNormGrad, LayerNormGradV3, PdOutputs, check_mask

__all__ = ["layer_norm_grad", "layer_norm_grad_v3"]

P = ParamSpec("P")

# The type and default of each attribute in a torch op's schema, and that default in Python.
SCHEMA = {
    "output_mask": "bool[3] output_mask=[True, True, True]",
    "epsilon": "float? epsilon=None",
    "pd_gamma_dtype": "ScalarType? pd_gamma_dtype=None",
}
DEFAULTS: dict[str, Any] = {"output_mask": list(ALL), "epsilon": None, "pd_gamma_dtype": None}


def _define(name: str, op: GraphOp, call: Callable[P, PdOutputs]) -> Callable[P, PdOutputs]:
    """Define the torch op of a graph op. Returns the function that puts it into a graph.

    Args:
        name: Of the torch op.
        op: The graph op.
        call: The same, for its signature and documentation.
    """

    def arguments(values: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        tensors, attributes = values[: len(op.inputs)], values[len(op.inputs) :]
        return tensors, dict(zip(op.attributes, attributes, strict=False))  # torch leaves out defaults at the end

    def compute(*values: Any) -> tuple[Tensor, ...]:
        tensors, attributes = arguments(values)
        results = call(*tensors, **attributes)
        return tuple(tensors[1].new_empty(0) if result is None else result for result in results)

    def promise(*values: Any) -> tuple[Tensor, ...]:
        """Tensors without data, of the shapes and dtypes that the op will return."""
        tensors, attributes = arguments(values)
        attributes.pop("epsilon", None)
        x = tensors[1]
        return tuple(
            x.new_empty(0) if output is None else x.new_empty(output.shape, dtype=getattr(torch, output.dtype))
            for output in op.outputs(*tensors, **attributes)
        )

    inputs = ", ".join(f"Tensor {name}" for name in op.inputs)
    attributes = ", ".join(SCHEMA[attribute] for attribute in op.attributes)
    custom = torch.library.custom_op(
        f"lngrad::{name}", compute, mutates_args=(), schema=f"({inputs}, {attributes}) -> (Tensor, Tensor, Tensor)"
    )
    custom.register_fake(promise)
    operator = getattr(torch.ops.lngrad, name)

    @wraps(call)
    def captured(*tensors: P.args, **named: P.kwargs) -> PdOutputs:
        missing = [name for name in op.inputs[len(tensors) :] if name not in named]
        unknown = [name for name in named if name not in op.inputs[len(tensors) :] + op.attributes]
        if missing or unknown or len(tensors) > len(op.inputs):
            expected = f"{', '.join(op.inputs)}; {', '.join(op.attributes)} by name"
            wrong = f"no {missing[0]}" if missing else unknown[0] if unknown else f"{len(tensors)} arrays"
            raise TypeError(f"{op.name}: expected {expected}, got {wrong}")
        inputs_in_order = [*tensors, *(named[name] for name in op.inputs[len(tensors) :])]
        settings: list[Any] = [named.get(attribute, DEFAULTS[attribute]) for attribute in op.attributes]
        mask = list(check_mask(settings[0]))
        results = operator(*inputs_in_order, mask, *settings[1:])
        return PdOutputs(*(result if wanted else None for result, wanted in zip(results, mask, strict=True)))

    captured.__name__ = captured.__qualname__ = name
    return captured


layer_norm_grad = _define("layer_norm_grad", LayerNormGrad, LayerNormGrad.__call__)
layer_norm_grad_v3 = _define("layer_norm_grad_v3", LayerNormGradV3, LayerNormGradV3.__call__)
