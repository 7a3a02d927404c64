"""The checks of the first phases of aclnnLayerNorm, aclnnLayerNormWithImplMode and
aclnnFastLayerNorm.

The order and the codes are those of the published code (aclnn_layer_norm.cpp,
aclnn_fast_layer_norm.cpp); ``strict`` adds what only the documents say. Every difference is listed
in docs/ascend.md with its test.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.refusals import Refused, invalid_argument
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.arguments import Prototype, Unusable
from lngrad.ascend.aclnn.rules import (
    FLOATS,
    check_dtype,
    check_given,
    check_most_dims,
    check_parameter_dtype,
    check_parameter_shape,
    check_places,
    check_rank_of_input,
    check_usable,
)
from lngrad.ascend.soc import Target
from lngrad.typing import Shape

_INPUTS = ("input", "weightOptional", "biasOptional")
_OUTPUTS = ("out", "meanOutOptional", "rstdOutOptional")
LAYER_NORM = Prototype("aclnnLayerNorm", _INPUTS, _OUTPUTS)
WITH_IMPL_MODE = Prototype("aclnnLayerNormWithImplMode", _INPUTS, _OUTPUTS)
FAST = Prototype("aclnnFastLayerNorm", _INPUTS, _OUTPUTS)

IMPL_MODES = {0: "high precision", 1: "high performance", 2: "float16"}
FLOAT16_MODE = 2
FAST_MOST_ELEMENTS = 583_705_600  # normalized, of aclnnFastLayerNorm
FAST_ARCH = 2201  # Atlas A2 and A3 have it, by its page


class Arguments(NamedTuple):
    """The facts of all arguments, in the order of the prototype; None for a null pointer."""

    input: TensorFacts | Unusable | None
    normalizedShape: tuple[int, ...] | Unusable | None
    weightOptional: TensorFacts | Unusable | None
    biasOptional: TensorFacts | Unusable | None
    eps: float | Unusable
    out: TensorFacts | Unusable | None
    meanOutOptional: TensorFacts | Unusable | None
    rstdOutOptional: TensorFacts | Unusable | None
    implMode: float | Unusable


class Checked(NamedTuple):
    """The arguments once nothing required is missing and everything is what it should be: what the
    later rules read.
    """

    input: TensorFacts
    normalizedShape: Shape
    weightOptional: TensorFacts | None
    biasOptional: TensorFacts | None
    eps: float
    out: TensorFacts
    meanOutOptional: TensorFacts | None
    rstdOutOptional: TensorFacts | None
    implMode: float

    @property
    def lead(self) -> Shape:
        """Input's dimensions that are not normalized."""
        return self.input.shape[: len(self.input.shape) - len(self.normalizedShape)]

    @property
    def rows(self) -> Shape:
        """The documented shape of mean and rstd: [A1, …, Ai, 1, …, 1]."""
        return (*self.lead, *(1,) * len(self.normalizedShape))


def check(prototype: Prototype, arguments: Arguments, target: Target) -> Checked:
    """Check all arguments; the first broken rule decides.

    Raises:
        Refused: With ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID,
            ACLNN_ERR_INNER_FIND_KERNEL_ERROR (strict: the product does not have the function) or
            ACLNN_ERR_INNER_NULLPTR.
    """
    strict, fast = target.mode == "strict", prototype is FAST
    if strict:
        _check_product(prototype, target)
    for name in ("input", "normalizedShape", "out"):
        check_given(name, getattr(arguments, name))
    check_usable(arguments)
    checked = Checked(*arguments)  # type: ignore[arg-type]  # what is Unusable or null has just been refused
    _check_dtypes(checked, target, FLOATS if fast and not strict else _supported(target))
    _check_shapes(checked, strict or fast or target.soc.regbase)
    _check_impl_mode(checked)
    if fast and math.prod(checked.normalizedShape) > FAST_MOST_ELEMENTS:
        raise Refused(
            aclnnStatus.ACLNN_ERR_INNER_NULLPTR,
            f"normalizedShape: expected at most {FAST_MOST_ELEMENTS} elements, got {checked.normalizedShape}",
        )
    for name in _OUTPUTS:
        output = getattr(checked, name)
        if output is not None:
            check_places(name, output)
    return checked


def _check_product(prototype: Prototype, target: Target) -> None:
    """The pages list the products. The published code does not look."""
    arch = target.soc.arch
    missing = arch != FAST_ARCH if prototype is FAST else arch == 2002 and target.documents == "master"
    if missing:
        raise Refused(
            aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
            f"{prototype.function}: expected a product that has it, got {target.soc.name} ({target.soc.product})",
        )


def _supported(target: Target) -> tuple[aclDataType, ...]:
    return FLOATS if target.soc.bf16 else FLOATS[:2]


def _check_dtypes(checked: Checked, target: Target, known: tuple[aclDataType, ...]) -> None:
    check_dtype("input", checked.input, known, target)
    for name in ("weightOptional", "biasOptional"):
        parameter = getattr(checked, name)
        if parameter is not None:
            check_dtype(name, parameter, known, target)
            check_parameter_dtype(name, parameter, checked.input.dtype)
    weight, bias = checked.weightOptional, checked.biasOptional
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise invalid_argument(
            f"biasOptional: expected the dtype of weightOptional, {weight.dtype.name}, got {bias.dtype.name}"
        )
    for name in _OUTPUTS:
        output = getattr(checked, name)
        if output is not None:
            check_dtype(name, output, known, target)


def _check_shapes(checked: Checked, exact_rows: bool) -> None:
    shape, norm = checked.input.shape, checked.normalizedShape
    for name in ("input", "out", "weightOptional", "biasOptional", "meanOutOptional", "rstdOutOptional"):
        tensor = getattr(checked, name)
        if tensor is not None:
            check_most_dims(name, tensor.shape)
    check_most_dims("normalizedShape", norm)
    check_rank_of_input(shape, norm)
    trailing = shape[len(checked.lead) :]
    if trailing != norm:
        raise invalid_argument(
            f"normalizedShape: expected the last dimensions of input {shape}, {trailing}, got {norm}"
        )
    for name in ("weightOptional", "biasOptional"):
        parameter = getattr(checked, name)
        if parameter is not None:
            check_parameter_shape(name, parameter, norm)
    if checked.out.shape != shape:
        raise invalid_argument(f"out: expected the shape of input, {shape}, got {checked.out.shape}")
    for name in ("meanOutOptional", "rstdOutOptional"):
        output = getattr(checked, name)
        if output is not None:
            _check_rows(name, output.shape, checked, exact_rows)


def _check_rows(name: str, shape: Shape, checked: Checked, exact: bool) -> None:
    if exact and shape != checked.rows:
        raise invalid_argument(f"{name}: expected the shape {checked.rows}, one element per row of input, got {shape}")
    if math.prod(shape) != math.prod(checked.lead):  # the code lets it pass here, and copies the results to no end
        raise Refused(
            aclnnStatus.ACLNN_ERR_INNER_NULLPTR,
            f"{name}: expected {math.prod(checked.lead)} elements, one per row of input, got {math.prod(shape)}: {shape}",
        )


def _check_impl_mode(checked: Checked) -> None:
    mode = checked.implMode
    if mode not in IMPL_MODES:
        known = ", ".join(f"{number} ({words})" for number, words in IMPL_MODES.items())
        raise invalid_argument(f"implMode: expected {known}, got {mode!r}")
    if mode != FLOAT16_MODE:
        return
    for name in _INPUTS:
        tensor = getattr(checked, name)
        if tensor is not None and tensor.dtype != aclDataType.ACL_FLOAT16:
            raise invalid_argument(f"{name}: expected ACL_FLOAT16, as implMode is 2, got {tensor.dtype.name}")
