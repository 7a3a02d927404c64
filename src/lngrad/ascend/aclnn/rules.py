"""Rules that the checks of several first phases share."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.refusals import invalid_argument, null_argument
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.arguments import Unusable
from lngrad.ascend.soc import Target
from lngrad.typing import Shape

MOST_DIMS = 8
FLOAT = aclDataType.ACL_FLOAT
FLOATS = (aclDataType.ACL_FLOAT, aclDataType.ACL_FLOAT16, aclDataType.ACL_BF16)


def check_given(name: str, argument: object) -> None:
    """Refuse a null pointer in the place of a required argument."""
    if argument is None:
        raise null_argument(f"{name}: expected an argument, got a null pointer")


def check_usable(arguments: Iterable[object]) -> None:
    """Refuse arguments of another type, and destroyed ones."""
    for argument in arguments:
        if isinstance(argument, Unusable):
            raise invalid_argument(argument.text)


def check_dtype(name: str, facts: TensorFacts, known: tuple[aclDataType, ...], target: Target) -> None:
    """Refuse a dtype that the product has not."""
    if facts.dtype not in known:
        allowed = ", ".join(dtype.name for dtype in known)
        raise invalid_argument(f"{name}: expected one of {allowed} on {target.soc.name}, got {facts.dtype.name}")


def check_parameter_dtype(name: str, facts: TensorFacts, dtype: aclDataType) -> None:
    """A weight or bias is in FLOAT or in input's dtype."""
    if facts.dtype not in (FLOAT, dtype):
        raise invalid_argument(
            f"{name}: expected ACL_FLOAT or the dtype of input, {dtype.name}, got {facts.dtype.name}"
        )


def check_most_dims(name: str, shape: Shape) -> None:
    """Refuse more than 8 dimensions."""
    if len(shape) > MOST_DIMS:
        raise invalid_argument(f"{name}: expected at most {MOST_DIMS} dimensions, got {len(shape)}: {shape}")


def check_rank_of_input(shape: Shape, norm: Shape) -> None:
    """normalizedShape has at least one dimension, and input at least as many."""
    if len(norm) < 1:
        raise invalid_argument("normalizedShape: expected at least 1 dimension, got 0")
    if len(shape) < len(norm):
        raise invalid_argument(
            f"input: expected at least the {len(norm)} dimensions of normalizedShape {norm}, got {len(shape)}: {shape}"
        )


def check_parameter_shape(name: str, facts: TensorFacts, norm: Shape) -> None:
    """A weight or bias has normalizedShape."""
    if facts.shape != norm:
        raise invalid_argument(f"{name}: expected the shape of normalizedShape, {norm}, got {facts.shape}")


def check_rows(name: str, shape: Shape, lead: Shape) -> None:
    """A mean or rstd has one element per row."""
    if math.prod(shape) != math.prod(lead):
        raise invalid_argument(
            f"{name}: expected {math.prod(lead)} elements, the product of input's first {len(lead)} dimensions "
            f"{lead}, got {math.prod(shape)}: {shape}"
        )


def check_places(name: str, facts: TensorFacts) -> None:
    """No two elements of an output lie in the same place. CANN: not checked."""
    steps = zip(facts.shape, facts.strides, strict=True)
    if 0 not in facts.shape and any(stride == 0 and size > 1 for size, stride in steps):
        raise invalid_argument(f"{name}: expected a place of its own for every element, got strides {facts.strides}")
