"""The graph ops LayerNormGrad (from the variance) and LayerNormGradV3 (from rstd), run on any
machine.

Both compute, with xhat = (x - mean)·rstd and means over the dimensions of gamma: pd_x = (dy·gamma -
(mean(dy·gamma) + xhat·mean(dy·gamma·xhat)))·rstd, pd_gamma = Σ dy·xhat, pd_beta = Σ dy.

LayerNormGrad has rstd = 1/sqrt(variance + epsilon). Its older page says 1/(variance + epsilon):
that is a typo, as the header's comment, the kernel, the newer page and the tile API of the same
name all take the root.

On a device LayerNormGrad is registered for Ascend 950, LayerNormGradV3 for Atlas A2, A3 and Ascend
950; here both run with every SoC of ``lngrad.ascend.soc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.api import layer_norm_backward
from lngrad.ascend import soc
from lngrad.ascend.graph.rules import DtypeLike, check_mask, infer_dtype, infer_shape
from lngrad.ascend.rounding import round_half_away, rounds_half_away
from lngrad.core.arrays import Output, as_array, as_numpy, empty, spec_of
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.problem import Grads, Problem
from lngrad.typing import AnyArray, Array, Mask, Tensor

EPSILON, EPSILON_FLOAT32 = 1e-5, 1e-12  # constants of the op's tiling: no attribute
ALL = (True, True, True)

Known: TypeAlias = "Array | Tensor"  # an argument as the core takes it


class PdOutputs(NamedTuple):
    """Results of a graph op, or their shapes or dtypes: pd_x like x; pd_gamma, pd_beta like gamma.
    None: masked off.
    """

    pd_x: Any
    pd_gamma: Any
    pd_beta: Any


class GraphOp:
    """What both ops share; they differ in their third input.

    Attributes:
        name: Of the op.
        inputs: Names of its tensors, in order.
        attributes: Names of what else it takes, in the order of the torch op.
    """

    name: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{__name__}.{self.name}"

    def infer_shape(self, *shapes: Sequence[int], output_mask: Sequence[bool] = ALL) -> PdOutputs:
        """Shapes of the outputs, before there is data.

        Args:
            shapes: Of dy, x, variance or rstd, mean, gamma. A dimension of -1 is unknown, (-2,) is
                an unknown rank.
            output_mask: Which outputs are wanted; the others are None.

        Returns:
            pd_x has dy's shape, pd_gamma and pd_beta have gamma's: unknown where those are.

        Raises:
            ShapeError: What is known breaks a rule.
        """
        self._check_number(shapes)
        return _masked(infer_shape(self.inputs, shapes, empty=_takes_empty()), output_mask)

    def infer_dtype(
        self, *dtypes: DtypeLike, pd_gamma_dtype: DtypeLike | None = None, output_mask: Sequence[bool] = ALL
    ) -> PdOutputs:
        """Names of the outputs' dtypes, before there is data.

        Args:
            dtypes: Of dy, x, variance or rstd, mean, gamma: names, or dtypes of NumPy or torch.
            pd_gamma_dtype: float32 or gamma's dtype; None for gamma's.
            output_mask: Which outputs are wanted; the others are None.

        Raises:
            DtypeError: They are no row of the op's table.
        """
        self._check_number(dtypes)
        strict = soc.current().mode == "strict"
        return _masked(infer_dtype(self.inputs, dtypes, pd_gamma_dtype, strict), output_mask)

    def outputs(
        self, *arrays: AnyArray, output_mask: Sequence[bool] = ALL, pd_gamma_dtype: DtypeLike | None = None
    ) -> PdOutputs:
        """Shape and dtype of each output, from the facts of the inputs alone: for fake kernels.

        Args:
            arrays: dy, x, variance or rstd, mean, gamma; their data are not read.
            output_mask, pd_gamma_dtype: As in the call.
        """
        dy, x, _, mean, gamma = known = self._known(arrays)
        mask, parameter = check_mask(output_mask), self._check(known, pd_gamma_dtype)
        statistics = _float32(mean)
        problem, _ = Problem.backward(dy, x, statistics, statistics, gamma, tuple(gamma.shape), mask)
        pd_x, *pd_parameters = problem.outputs()
        return PdOutputs(pd_x, *(one and Output.of(one.shape, parameter) for one in pd_parameters))

    def _run(self, arrays: tuple[Known, ...], rstd: Known, output_mask: Mask, parameter: str) -> PdOutputs:
        """Compute, from checked arrays and the op's rstd."""
        dy, x, _, mean, gamma = arrays
        facts = spec_of("x", x)
        if rounds_half_away(soc.current()) and "bfloat16" in (facts.dtype, parameter):
            return _run_half_away((dy, x, mean, rstd, gamma), output_mask, facts.kind, (facts.dtype, parameter))
        out = None
        if parameter != spec_of("gamma", gamma).dtype:
            output = Output.of(tuple(gamma.shape), parameter)
            out = Grads(None, *(empty(facts.kind, output) if wanted else None for wanted in output_mask[1:]))
        return PdOutputs(*layer_norm_backward(dy, x, _float32(mean), rstd, gamma, output_mask=output_mask, out=out))

    def _known(self, arrays: Sequence[AnyArray]) -> tuple[Known, ...]:
        self._check_number(arrays)
        return tuple(as_array(name, array) for name, array in zip(self.inputs, arrays, strict=True))

    def _check(self, arrays: tuple[Known, ...], pd_gamma_dtype: DtypeLike | None) -> str:
        """Check arrays. Returns the dtype of pd_gamma and pd_beta."""
        facts = [spec_of(name, array) for name, array in zip(self.inputs, arrays, strict=True)]
        _, parameter, _ = infer_dtype(
            self.inputs, [one.dtype for one in facts], pd_gamma_dtype, soc.current().mode == "strict"
        )
        infer_shape(self.inputs, [one.shape for one in facts], empty=_takes_empty())
        return parameter

    def _check_number(self, given: Sequence[object]) -> None:
        if len(given) != len(self.inputs):
            raise TypeError(f"{self.name}: expected {len(self.inputs)}, for {', '.join(self.inputs)}, got {len(given)}")


class _LayerNormGrad(GraphOp):
    name = "LayerNormGrad"
    inputs = ("dy", "x", "variance", "mean", "gamma")
    attributes = ("output_mask", "epsilon", "pd_gamma_dtype")

    def __call__(
        self,
        dy: AnyArray,
        x: AnyArray,
        variance: AnyArray,
        mean: AnyArray,
        gamma: AnyArray,
        *,
        output_mask: Sequence[bool] = ALL,
        epsilon: float | None = None,
        pd_gamma_dtype: DtypeLike | None = None,
    ) -> PdOutputs:
        """Gradients of layer normalization from the forward's input, mean and biased variance.

        rstd = 1/sqrt(variance + epsilon), with the root that the op's older page forgets.

        Args:
            dy, x: (A1, …, Ai, R1, …, Rj), no dimension empty (but see ``soc.use(cann="master")``),
                the same dtype: float32, float16 or bfloat16.
            variance, mean: The same shape, one element per row, the same dtype: float32, or 16 bits
                for a 16-bit x.
            gamma: (R1, …, Rj) in float32 or dy's dtype.
            output_mask: Which of pd_x, pd_gamma, pd_beta are wanted; the others are None. CANN: the
                older page has this attribute, the registered op does not.
            epsilon: None for the constant of the op's tiling: 1e-12 for float32, else 1e-5. CANN:
                no attribute.
            pd_gamma_dtype: float32, or gamma's dtype; None for gamma's.

        Returns:
            pd_x in x's dtype; pd_gamma, pd_beta (R1, …, Rj). Arrays of x's kind.

        Raises:
            ShapeError, DtypeError: An argument breaks a rule.

        IR:
        ``REG_OP(LayerNormGrad).INPUT(dy).INPUT(x).INPUT(variance).INPUT(mean).INPUT(gamma).OUTPUT(pd_x)
        .OUTPUT(pd_gamma).OUTPUT(pd_beta)``
        """
        arrays = self._known((dy, x, variance, mean, gamma))
        mask, parameter = check_mask(output_mask), self._check(arrays, pd_gamma_dtype)
        if epsilon is None:
            epsilon = EPSILON_FLOAT32 if spec_of("x", arrays[1]).dtype == "float32" else EPSILON
        return self._run(arrays, _rstd(arrays[2], epsilon), mask, parameter)


class _LayerNormGradV3(GraphOp):
    name = "LayerNormGradV3"
    inputs = ("dy", "x", "rstd", "mean", "gamma")
    attributes = ("output_mask", "pd_gamma_dtype")

    def __call__(
        self,
        dy: AnyArray,
        x: AnyArray,
        rstd: AnyArray,
        mean: AnyArray,
        gamma: AnyArray,
        *,
        output_mask: Sequence[bool] = ALL,
        pd_gamma_dtype: DtypeLike | None = None,
    ) -> PdOutputs:
        """Gradients of layer normalization from the forward's input, mean and rstd.

        Args:
            rstd: 1/sqrt(variance + eps) of the forward; shape and dtype as mean.
            dy, x, mean, gamma, output_mask, pd_gamma_dtype: As for LayerNormGrad. CANN: outside
                Ascend 950 all outputs must be wanted; there an output that is masked off has
                meaningless data, here it is None.

        Returns, Raises: As LayerNormGrad.

        IR:
        ``REG_OP(LayerNormGradV3).INPUT(dy).INPUT(x).INPUT(rstd).INPUT(mean).INPUT(gamma).OUTPUT(pd_x)
        .OUTPUT(pd_gamma).OUTPUT(pd_beta).ATTR(output_mask, ListBool, {true, true, true})``
        """
        arrays = self._known((dy, x, rstd, mean, gamma))
        mask, parameter = check_mask(output_mask), self._check(arrays, pd_gamma_dtype)
        return self._run(arrays, _float32(arrays[2]), mask, parameter)


LayerNormGrad = _LayerNormGrad()
LayerNormGradV3 = _LayerNormGradV3()


def _takes_empty() -> bool:
    """Whether the op takes empty tensors: the newest does, the sums over nothing are 0."""
    return soc.current().documents == "master"


def _masked(outputs: tuple[Any, Any, Any], output_mask: Sequence[bool]) -> PdOutputs:
    mask = check_mask(output_mask)
    return PdOutputs(*(output if wanted else None for output, wanted in zip(outputs, mask, strict=True)))


def _float32(array: Known) -> Known:
    """Statistics in float32: exact, as none is wider."""
    return array.astype(np.float32, copy=False) if isinstance(array, np.ndarray) else array.float()


def _rstd(variance: Known, epsilon: float) -> Known:
    """1/sqrt(variance + epsilon), in float64 and rounded once."""
    if not isinstance(variance, np.ndarray):
        return (variance.double() + epsilon).rsqrt().float()
    with np.errstate(divide="ignore", invalid="ignore"):  # a variance of -epsilon, or below: infinity, or NaN
        return (1 / np.sqrt(variance.astype(np.float64)[None] + epsilon)).astype(np.float32)[0]


def _run_half_away(inputs: tuple[Known, ...], mask: Mask, kind: str, dtypes: tuple[str, str]) -> PdOutputs:
    """As Atlas A2 rounds: everything in float32, then bfloat16 with ties away from zero.

    Args:
        inputs: dy, x, mean, rstd, gamma.
        mask: Which outputs are wanted.
        kind: Of the results: "numpy" or "torch".
        dtypes: Of pd_x, and of pd_gamma and pd_beta.
    """
    grads = layer_norm_backward(*(as_numpy(array).astype(np.float32) for array in inputs), output_mask=mask)
    results: list[Known | None] = []
    for result, dtype in zip(grads, (dtypes[0], dtypes[1], dtypes[1]), strict=True):
        if result is None:
            results.append(None)
            continue
        if dtype == "bfloat16":
            round_half_away(result)
        output = empty(kind, Output.of(result.shape, dtype))
        as_numpy(output)[...] = result.astype(numpy_dtype(dtype))
        results.append(output)
    return PdOutputs(*results)
