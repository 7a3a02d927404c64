"""The graph op LayerNorm, the forward whose mean and variance LayerNormGrad reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lngrad.api import layer_norm
from lngrad.core.arrays import Output, as_array, empty, spec_of
from lngrad.core.problem import Forward
from lngrad.errors import DtypeError, ShapeError
from lngrad.support.addresses import as_numpy
from lngrad.typing import AnyArray
from lngrad_ascend import soc as socs
from lngrad_ascend.graph import layer_norm_grad as grad
from lngrad_ascend.graph.layer_norm_grad import UNKNOWN_RANK, DtypeLike


class LayerNormOutputs(NamedTuple):
    """Results of LayerNorm, or their shapes or dtypes: y like x; mean and variance one element per row, in gamma's dtype."""

    y: Any
    mean: Any
    variance: Any


class _LayerNorm:
    name = "LayerNorm"
    inputs = ("x", "gamma", "beta")
    attributes = ("begin_norm_axis", "begin_params_axis", "epsilon")

    def __repr__(self) -> str:
        return f"{__name__}.{self.name}"

    def __call__(
        self, x: AnyArray, gamma: AnyArray, beta: AnyArray, *, epsilon: float = 1e-7, **axes: int
    ) -> LayerNormOutputs:
        """y = (x - mean)/sqrt(variance + epsilon)·gamma + beta, with the mean and the biased variance of each row.

        Args:
            x: (A1, …, Ai, R1, …, Rj), 1 to 8 dimensions, none of them empty: float32, float16 or bfloat16.
            gamma, beta: (R1, …, Rj), the same dtype: x's or float32.
            epsilon: 1e-7 as in the IR. CANN: 1e-12 in the op's registration. LayerNormGrad has a constant of its own.
            axes: begin_norm_axis and begin_params_axis, as of infer_shape.

        Returns:
            y in x's dtype; mean, variance (A1, …, Ai, 1, …, 1) in gamma's dtype. Arrays of x's kind.

        Raises:
            ShapeError, DtypeError, NumberError: An argument breaks a rule.

        IR: ``REG_OP(LayerNorm).INPUT(x).INPUT(gamma).INPUT(beta).OUTPUT(y).OUTPUT(mean).OUTPUT(variance)
        .ATTR(begin_norm_axis, Int, 0).ATTR(begin_params_axis, Int, 0).ATTR(epsilon, Float, 0.0000001f)``
        """
        arrays = {name: as_array(name, array) for name, array in zip(self.inputs, (x, gamma, beta), strict=True)}
        facts = [spec_of(name, array) for name, array in arrays.items()]
        dtypes = self.infer_dtype(*(spec.dtype for spec in facts))
        shapes = self.infer_shape(*(spec.shape for spec in facts), **axes)
        results = LayerNormOutputs(*(empty(facts[0].kind, output) for output in map(Output.of, shapes, dtypes)))
        y, mean, variance = map(as_numpy, results)
        matrix, scale, shift = map(as_numpy, arrays.values())
        layer_norm(matrix, scale, shift, normalized_shape=scale.shape, eps=epsilon, out=Forward(y, None, None))
        # In float64, as rstd² doubles an error; without epsilon, as a small variance would be lost beside it.
        exact = layer_norm(matrix, scale.astype(np.float64), normalized_shape=scale.shape, eps=0.0)
        with np.errstate(over="ignore", divide="ignore"):
            mean[...], variance[...] = exact.mean, exact.rstd**-2
        return results

    def infer_shape(
        self, *shapes: Sequence[int], begin_norm_axis: int = 0, begin_params_axis: int = 0
    ) -> LayerNormOutputs:
        """Shapes of the outputs, before there is data; raises as GraphOp's.

        Args:
            shapes: Of x, gamma, beta. A dimension of -1 is unknown, (-2,) is an unknown rank.
            begin_norm_axis: The axis of R1, negative from the end.
            begin_params_axis: The same axis. CANN: parameters may also begin at another one.
        """
        grad.check_number(self.name, self.inputs, shapes)
        x, *parameters = map(tuple, shapes)
        for name, shape in zip(self.inputs, (x, *parameters), strict=True):
            grad.check_dims(name, shape)
        if x == UNKNOWN_RANK:
            return LayerNormOutputs(x, x, x)
        for name, axis in (("begin_norm_axis", begin_norm_axis), ("begin_params_axis", begin_params_axis)):
            if not isinstance(axis, int) or not -len(x) <= axis < len(x):
                raise ShapeError(f"{name}: expected an axis of x {x}, got {axis!r}")
        first, other = begin_norm_axis % len(x), begin_params_axis % len(x)
        if other != first:
            raise ShapeError(f"begin_params_axis: expected begin_norm_axis, {first}, got {other}: no other is here")
        for name, shape in zip(self.inputs[1:], parameters, strict=True):
            if shape != UNKNOWN_RANK and grad.differ(shape, x[first:]):
                raise ShapeError(f"{name}: expected the last dimensions of x, {x[first:]}, got {shape}")
        rows = x[:first] + (1,) * (len(x) - first)
        return LayerNormOutputs(x, rows, rows)

    def infer_dtype(self, *dtypes: DtypeLike) -> LayerNormOutputs:
        """Names of the outputs' dtypes from those of x, gamma, beta; as GraphOp's. Strict: bfloat16 where the SoC has it."""
        grad.check_number(self.name, self.inputs, dtypes)
        x, gamma, beta = map(grad.dtype_name, dtypes)
        target = socs.current()
        known = [name for name in grad.BITS if name != "bfloat16" or target.soc.bf16 or target.mode == "compat"]
        if x not in known:
            raise DtypeError(f"x: expected one of {', '.join(known)} on {target.soc.name}, got {x}")
        if gamma not in ("float32", x):
            raise DtypeError(f"gamma: expected float32 or the dtype of x, {x}, got {gamma}")
        if beta != gamma:
            raise DtypeError(f"beta: expected the dtype of gamma, {gamma}, got {beta}")
        return LayerNormOutputs(x, gamma, gamma)


LayerNorm = _LayerNorm()
