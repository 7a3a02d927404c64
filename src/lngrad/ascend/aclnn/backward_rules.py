"""The checks of aclnnLayerNormBackward's first phase, in the documented order, each with its code
and text.

A check is a function of facts alone, so that a call with known facts is not checked again. The
order and the codes are those of the published code (aclnn_layer_norm_backward.cpp); ``strict`` adds
what only the documents say, ``compat`` has the code's own rules in its place. Every difference is
listed in docs/ascend.md with its test.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lngrad.ascend.acl.element_types import NUMPY_DTYPES
from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.refusals import Refused, invalid_argument, null_argument
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.arguments import Prototype, Unusable
from lngrad.ascend.aclnn.rules import (
    FLOAT,
    FLOATS,
    MOST_DIMS,
    check_dtype,
    check_given,
    check_most_dims,
    check_parameter_dtype,
    check_parameter_shape,
    check_places,
    check_rank_of_input,
    check_rows,
    check_usable,
)
from lngrad.ascend.soc import Target
from lngrad.typing import Shape

PROTOTYPE = Prototype(
    "aclnnLayerNormBackward",
    ("gradOut", "input", "mean", "rstd", "weightOptional", "biasOptional"),
    ("gradInputOut", "gradWeightOut", "gradBiasOut"),
)
OUTPUTS = PROTOTYPE.outputs


class Arguments(NamedTuple):
    """The facts of all arguments, in the order of the prototype; None for a null pointer."""

    gradOut: TensorFacts | Unusable | None
    input: TensorFacts | Unusable | None
    normalizedShape: tuple[int, ...] | Unusable | None
    mean: TensorFacts | Unusable | None
    rstd: TensorFacts | Unusable | None
    weightOptional: TensorFacts | Unusable | None
    biasOptional: TensorFacts | Unusable | None
    outputMask: tuple[bool, ...] | Unusable | None
    gradInputOut: TensorFacts | Unusable | None
    gradWeightOut: TensorFacts | Unusable | None
    gradBiasOut: TensorFacts | Unusable | None


class Checked(NamedTuple):
    """The arguments once nothing required is missing and everything is what it should be: what the
    later rules read.
    """

    gradOut: TensorFacts
    input: TensorFacts
    normalizedShape: Shape
    mean: TensorFacts
    rstd: TensorFacts
    weightOptional: TensorFacts | None
    biasOptional: TensorFacts | None
    outputMask: tuple[bool, ...]
    gradInputOut: TensorFacts | None
    gradWeightOut: TensorFacts | None
    gradBiasOut: TensorFacts | None

    def wanted(self, name: str) -> TensorFacts | None:
        """The facts of an output that outputMask asks for."""
        return getattr(self, name) if self.outputMask[OUTPUTS.index(name)] else None

    def masked_on(self) -> list[tuple[str, TensorFacts]]:
        """Name and facts of the outputs that outputMask asks for."""
        return [(name, facts) for name in OUTPUTS if (facts := self.wanted(name)) is not None]

    @property
    def lead(self) -> Shape:
        """Input's dimensions that are not normalized."""
        return self.input.shape[: len(self.input.shape) - len(self.normalizedShape)]

    @property
    def trailing(self) -> Shape:
        """Input's dimensions that are normalized; in compat they may differ from
        normalizedShape.
        """
        return self.input.shape[len(self.lead) :]


def check(arguments: Arguments, target: Target) -> Checked:
    """Check all arguments; the first broken rule decides.

    Raises:
        Refused: With ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID or, for weights that CANN's
            tiling refuses, ACLNN_ERR_INNER_TILING_ERROR.
    """
    checked = _check_pointers(arguments)
    _check_dtypes(checked, target)
    if target.mode == "strict" and target.documents == "master":
        _check_newest_ranks(checked)
    _check_shapes(checked, target.mode == "strict")
    return checked


def _check_pointers(arguments: Arguments) -> Checked:
    for name in ("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask"):
        check_given(name, getattr(arguments, name))
    check_usable(arguments)
    checked = Checked(*arguments)  # type: ignore[arg-type]  # what is Unusable or null has just been refused
    if len(checked.outputMask) != len(OUTPUTS):
        raise invalid_argument(f"outputMask: expected 3 booleans, got {len(checked.outputMask)}")
    for position, name in enumerate(OUTPUTS):
        if checked.outputMask[position] and getattr(checked, name) is None:
            raise null_argument(f"{name}: expected a tensor, as outputMask[{position}] is true, got a null pointer")
    return checked


def _check_dtypes(checked: Checked, target: Target) -> None:
    # The document of 8.0.RC1 lists dtypes, and ties none but the weight's to another.
    tied = target.mode == "strict" and target.documents != "8.0.RC1"
    known = _supported(target)
    for name in ("gradOut", "input", "mean", "rstd"):
        check_dtype(name, getattr(checked, name), known, target)
    dtype = checked.input.dtype
    if checked.gradOut.dtype != dtype:
        raise invalid_argument(f"gradOut: expected the dtype of input, {dtype.name}, got {checked.gradOut.dtype.name}")
    if tied:
        _check_statistics_dtypes(checked)
    weight, bias = checked.weightOptional, checked.biasOptional
    if weight is not None:
        check_dtype("weightOptional", weight, known, target)
        check_parameter_dtype("weightOptional", weight, dtype)
    if bias is not None:
        check_dtype("biasOptional", bias, known, target)
        if tied:
            check_parameter_dtype("biasOptional", bias, dtype)
            if weight is not None and bias.dtype != weight.dtype:
                raise invalid_argument(
                    f"biasOptional: expected the dtype of weightOptional, {weight.dtype.name}, got {bias.dtype.name}"
                )
    for name in OUTPUTS:
        output = getattr(checked, name)
        if output is not None:
            check_dtype(name, output, known, target)
    if target.mode == "strict" and target.documents == "8.0.RC1":
        for name, output in checked.masked_on():
            if name != "gradInputOut" and output.dtype != FLOAT:
                raise invalid_argument(
                    f"{name}: expected ACL_FLOAT, as CANN {target.cann} has it, got {output.dtype.name}"
                )


def _supported(target: Target) -> tuple[aclDataType, ...]:
    """The dtypes that exist. The published code has one list for all SoCs, the documents have one
    per product.
    """
    if target.mode == "compat":
        return FLOATS
    if target.documents == "8.0.RC1":  # gives bfloat16 to Atlas A2 alone
        return FLOATS if target.soc.product.startswith("Atlas A2") else FLOATS[:2]
    return FLOATS if target.soc.bf16 else FLOATS[:2]


def _check_statistics_dtypes(checked: Checked) -> None:
    mean, rstd, wide = checked.mean.dtype, checked.rstd.dtype, checked.input.dtype
    if NUMPY_DTYPES[mean].itemsize < NUMPY_DTYPES[wide].itemsize:
        raise invalid_argument(f"mean: expected a dtype no narrower than input's, {wide.name}, got {mean.name}")
    if rstd != mean:
        raise invalid_argument(f"rstd: expected the dtype of mean, {mean.name}, got {rstd.name}")


def _check_newest_ranks(checked: Checked) -> None:
    """The newest page refuses empty tensors, and tensors without dimensions."""
    tensors = [(name, getattr(checked, name)) for name in PROTOTYPE.inputs]
    for name, facts in (*tensors, *checked.masked_on()):
        if facts is None:
            continue
        if not 1 <= len(facts.shape) <= MOST_DIMS:
            raise invalid_argument(
                f"{name}: expected 1 to {MOST_DIMS} dimensions, got {len(facts.shape)}: {facts.shape}"
            )
        if 0 in facts.shape:
            raise invalid_argument(f"{name}: expected a tensor that is not empty, got {facts.shape}")


def _check_shapes(checked: Checked, strict: bool) -> None:
    shape, norm = checked.input.shape, checked.normalizedShape
    for name in ("gradOut", "input", "mean", "rstd"):
        check_most_dims(name, getattr(checked, name).shape)
    check_most_dims("normalizedShape", norm)
    for name, output in checked.masked_on():
        check_most_dims(name, output.shape)
    check_rank_of_input(shape, norm)
    _check_normalized(shape, norm, strict)
    for name in ("weightOptional", "biasOptional"):
        parameter = getattr(checked, name)
        if parameter is not None:
            check_most_dims(name, parameter.shape)
            check_parameter_shape(name, parameter, norm)
    if checked.gradOut.shape != shape:
        raise invalid_argument(f"gradOut: expected the shape of input, {shape}, got {checked.gradOut.shape}")
    mean, rstd = checked.mean.shape, checked.rstd.shape
    if not strict and mean != rstd:
        raise invalid_argument(f"rstd: expected the shape of mean, {mean}, got {rstd}")
    check_rows("mean", mean, checked.lead)
    check_rows("rstd", rstd, checked.lead)
    _check_output_shapes(checked, strict)
    weight, trailing = checked.weightOptional, checked.trailing
    if weight is not None and weight.shape != trailing:
        raise Refused(  # the code lets it pass here, and its tiling stops it
            aclnnStatus.ACLNN_ERR_INNER_TILING_ERROR,
            f"weightOptional: expected the last dimensions of input, {trailing}, got {weight.shape}",
        )


def _check_normalized(shape: Shape, norm: Shape, strict: bool) -> None:
    """normalizedShape against input's last dimensions.

    CANN: the published loop begins at the first normalized axis instead of at 0, so that dimensions
    go uncompared: all of them as soon as input has twice as many as normalizedShape.
    """
    axis = len(shape) - len(norm)
    for position in range(0 if strict else axis, len(norm)):
        if norm[position] != shape[axis + position]:
            raise invalid_argument(
                f"normalizedShape: expected the last dimensions of input {shape}, got {norm}: {norm[position]} at "
                f"{position} against {shape[axis + position]}"
            )


def _check_output_shapes(checked: Checked, strict: bool) -> None:
    shape, trailing = checked.input.shape, checked.trailing
    for name, output in checked.masked_on():
        if name == "gradInputOut" and output.shape != shape:
            raise invalid_argument(f"gradInputOut: expected the shape of input, {shape}, got {output.shape}")
        if name != "gradInputOut" and strict and output.shape != trailing:
            raise invalid_argument(f"{name}: expected the shape of normalizedShape, {trailing}, got {output.shape}")
        if name != "gradInputOut" and math.prod(output.shape) != math.prod(trailing):
            raise invalid_argument(
                f"{name}: expected the {math.prod(trailing)} elements of normalizedShape, got "
                f"{math.prod(output.shape)}: {output.shape}"
            )
        check_places(name, output)
