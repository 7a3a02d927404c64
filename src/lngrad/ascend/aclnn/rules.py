"""The checks of aclnnLayerNormBackward's first phase, in the documented order, each with its code and text.

A check is a function of facts alone, so that a call with known facts is not checked again. The order and the codes are
those of the published code (aclnn_layer_norm_backward.cpp); ``strict`` adds what only the documents say, ``compat`` has
the code's own rules in its place. Every difference is listed in docs/ascend.md with the test that holds it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lngrad.ascend.acl.codes import aclDataType, aclnnStatus
from lngrad.ascend.acl.errors import Refused
from lngrad.ascend.acl.tensor import DTYPES, TensorFacts
from lngrad.ascend.soc import Target

__all__ = ["INPUTS", "OUTPUTS", "Arguments", "Unusable", "check", "normalized_axis"]

MOST_DIMS = 8
FLOATS = (aclDataType.ACL_FLOAT, aclDataType.ACL_FLOAT16, aclDataType.ACL_BF16)
INPUTS = ("gradOut", "input", "mean", "rstd", "weightOptional", "biasOptional")
OUTPUTS = ("gradInputOut", "gradWeightOut", "gradBiasOut")


class Unusable(NamedTuple):
    """In the place of facts: an argument of another type, or a destroyed one."""

    text: str


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
    """The arguments once nothing required is missing and everything is what it should be: what the later rules read."""

    gradOut: TensorFacts
    input: TensorFacts
    normalizedShape: tuple[int, ...]
    mean: TensorFacts
    rstd: TensorFacts
    weightOptional: TensorFacts | None
    biasOptional: TensorFacts | None
    outputMask: tuple[bool, ...]
    gradInputOut: TensorFacts | None
    gradWeightOut: TensorFacts | None
    gradBiasOut: TensorFacts | None

    def masked_on(self) -> list[tuple[str, TensorFacts]]:
        """Name and facts of the outputs that are wanted."""
        return [
            (name, facts)
            for name, wanted in zip(OUTPUTS, self.outputMask, strict=True)
            if wanted and (facts := getattr(self, name)) is not None
        ]


def check(arguments: Arguments, target: Target) -> Checked:
    """Check all arguments; the first broken rule decides.

    Raises:
        Refused: with ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID or, for weights that CANN's tiling refuses,
            ACLNN_ERR_INNER_TILING_ERROR.
    """
    checked = _check_pointers(arguments)
    _check_dtypes(checked, target)
    _check_shapes(checked, target.mode == "strict")
    return checked


def normalized_axis(checked: Checked) -> int:
    """The first normalized axis of input."""
    return len(checked.input.shape) - len(checked.normalizedShape)


# --- Null pointers and handles --------------------------------------------------------------------------------------


def _check_pointers(arguments: Arguments) -> Checked:
    for name in ("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask"):
        if getattr(arguments, name) is None:
            raise Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, f"{name}: expected an argument, got a null pointer")
    for facts in arguments:
        if isinstance(facts, Unusable):
            raise _invalid(facts.text)
    checked = Checked(*arguments)  # type: ignore[arg-type]  # what is Unusable or null has just been refused
    if len(checked.outputMask) != len(OUTPUTS):
        raise _invalid(f"outputMask: expected 3 booleans, got {len(checked.outputMask)}")
    for position, name in enumerate(OUTPUTS):
        if checked.outputMask[position] and getattr(checked, name) is None:
            raise Refused(
                aclnnStatus.ACLNN_ERR_PARAM_NULLPTR,
                f"{name}: expected a tensor, as outputMask[{position}] is true, got a null pointer",
            )
    return checked


# --- Dtypes ---------------------------------------------------------------------------------------------------------


def _check_dtypes(checked: Checked, target: Target) -> None:
    strict = target.mode == "strict"
    known = _supported(target)
    for name in ("gradOut", "input", "mean", "rstd"):
        _check_dtype(name, getattr(checked, name), known, target)
    dtype = checked.input.dtype
    if checked.gradOut.dtype != dtype:
        raise _invalid(f"gradOut: expected the dtype of input, {dtype.name}, got {checked.gradOut.dtype.name}")
    if strict and _has_dtype_relations(target):
        _check_statistics_dtypes(checked)
    weight, bias = checked.weightOptional, checked.biasOptional
    if weight is not None:
        _check_dtype("weightOptional", weight, known, target)
        _check_parameter_dtype("weightOptional", weight, dtype)
    if bias is not None:
        _check_dtype("biasOptional", bias, known, target)
        if strict and _has_dtype_relations(target):
            _check_parameter_dtype("biasOptional", bias, dtype)
            if weight is not None and bias.dtype != weight.dtype:
                raise _invalid(
                    f"biasOptional: expected the dtype of weightOptional, {weight.dtype.name}, got {bias.dtype.name}"
                )
    for name in OUTPUTS:
        output = getattr(checked, name)
        if output is not None:
            _check_dtype(name, output, known, target)
    if strict and not _has_dtype_relations(target):
        for name, output in checked.masked_on():
            if name != "gradInputOut" and output.dtype != aclDataType.ACL_FLOAT:
                raise _invalid(f"{name}: expected ACL_FLOAT, as CANN {target.cann} has it, got {output.dtype.name}")


def _supported(target: Target) -> tuple[aclDataType, ...]:
    """The dtypes that exist. The published code has one list for all SoCs, the documents have one per product."""
    if target.mode == "compat":
        return FLOATS
    first_release = not _has_dtype_relations(target)  # its document gives bfloat16 to Atlas A2 alone
    bf16 = target.soc.bf16 and not (first_release and not target.soc.product.startswith("Atlas A2"))
    return FLOATS if bf16 else FLOATS[:2]


def _has_dtype_relations(target: Target) -> bool:
    """Whether the release's document ties dtypes to each other. That of 8.0.RC1 lists them, and no more."""
    return not target.cann.startswith("8.0.RC1")


def _check_dtype(name: str, facts: TensorFacts, known: tuple[aclDataType, ...], target: Target) -> None:
    if facts.dtype not in known:
        allowed = ", ".join(dtype.name for dtype in known)
        raise _invalid(f"{name}: expected one of {allowed} on {target.soc.name}, got {facts.dtype.name}")


def _check_statistics_dtypes(checked: Checked) -> None:
    mean, rstd, wide = checked.mean.dtype, checked.rstd.dtype, checked.input.dtype
    if DTYPES[mean].itemsize < DTYPES[wide].itemsize:
        raise _invalid(f"mean: expected a dtype no narrower than input's, {wide.name}, got {mean.name}")
    if rstd != mean:
        raise _invalid(f"rstd: expected the dtype of mean, {mean.name}, got {rstd.name}")


def _check_parameter_dtype(name: str, facts: TensorFacts, dtype: aclDataType) -> None:
    if facts.dtype not in (aclDataType.ACL_FLOAT, dtype):
        raise _invalid(f"{name}: expected ACL_FLOAT or the dtype of input, {dtype.name}, got {facts.dtype.name}")


# --- Shapes ---------------------------------------------------------------------------------------------------------


def _check_shapes(checked: Checked, strict: bool) -> None:
    shape, norm = checked.input.shape, checked.normalizedShape
    for name in ("gradOut", "input", "mean", "rstd"):
        _check_dims(name, getattr(checked, name).shape)
    _check_dims("normalizedShape", norm)
    for name, output in checked.masked_on():
        _check_dims(name, output.shape)
    if len(norm) < 1:
        raise _invalid("normalizedShape: expected at least 1 dimension, got 0")
    if len(shape) < len(norm):
        raise _invalid(
            f"input: expected at least the {len(norm)} dimensions of normalizedShape {norm}, got {len(shape)}: {shape}"
        )
    _check_normalized(shape, norm, strict)
    for name in ("weightOptional", "biasOptional"):
        parameter = getattr(checked, name)
        if parameter is not None:
            _check_dims(name, parameter.shape)
            if parameter.shape != norm:
                raise _invalid(f"{name}: expected the shape of normalizedShape, {norm}, got {parameter.shape}")
    if checked.gradOut.shape != shape:
        raise _invalid(f"gradOut: expected the shape of input, {shape}, got {checked.gradOut.shape}")
    _check_statistics_shapes(checked, strict)
    _check_output_shapes(checked, strict)
    weight, trailing = checked.weightOptional, shape[normalized_axis(checked) :]
    if weight is not None and weight.shape != trailing:
        raise Refused(  # the code lets it pass here, and its tiling stops it
            aclnnStatus.ACLNN_ERR_INNER_TILING_ERROR,
            f"weightOptional: expected the last dimensions of input, {trailing}, got {weight.shape}",
        )


def _check_dims(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) > MOST_DIMS:
        raise _invalid(f"{name}: expected at most {MOST_DIMS} dimensions, got {len(shape)}: {shape}")


def _check_normalized(shape: tuple[int, ...], norm: tuple[int, ...], strict: bool) -> None:
    """normalizedShape against input's last dimensions.

    CANN: the published loop begins at the first normalized axis instead of at 0, so that dimensions go uncompared: all
    of them as soon as input has twice as many as normalizedShape.
    """
    axis = len(shape) - len(norm)
    for position in range(0 if strict else axis, len(norm)):
        if norm[position] != shape[axis + position]:
            raise _invalid(
                f"normalizedShape: expected the last dimensions of input {shape}, got {norm}: {norm[position]} at "
                f"{position} against {shape[axis + position]}"
            )


def _check_statistics_shapes(checked: Checked, strict: bool) -> None:
    axis = normalized_axis(checked)
    rows = math.prod(checked.input.shape[:axis])
    mean, rstd = checked.mean.shape, checked.rstd.shape
    if not strict and mean != rstd:
        raise _invalid(f"rstd: expected the shape of mean, {mean}, got {rstd}")
    for name, shape in (("mean", mean), ("rstd", rstd)):
        if math.prod(shape) != rows:
            raise _invalid(
                f"{name}: expected {rows} elements, the product of input's first {axis} dimensions "
                f"{checked.input.shape[:axis]}, got {math.prod(shape)}: {shape}"
            )


def _check_output_shapes(checked: Checked, strict: bool) -> None:
    shape = checked.input.shape
    trailing = shape[normalized_axis(checked) :]
    for name, output in checked.masked_on():
        if name == "gradInputOut" and output.shape != shape:
            raise _invalid(f"gradInputOut: expected the shape of input, {shape}, got {output.shape}")
        if name != "gradInputOut" and strict and output.shape != trailing:
            raise _invalid(f"{name}: expected the shape of normalizedShape, {trailing}, got {output.shape}")
        if name != "gradInputOut" and math.prod(output.shape) != math.prod(trailing):
            raise _invalid(
                f"{name}: expected the {math.prod(trailing)} elements of normalizedShape, got "
                f"{math.prod(output.shape)}: {output.shape}"
            )
        shared = any(stride == 0 and size > 1 for size, stride in zip(output.shape, output.strides, strict=True))
        if shared and 0 not in output.shape:
            raise _invalid(f"{name}: expected a place of its own for every element, got strides {output.strides}")


def _invalid(text: str) -> Refused:
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)
