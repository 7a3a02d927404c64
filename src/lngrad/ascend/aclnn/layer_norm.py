"""aclnnLayerNorm, aclnnLayerNormWithImplMode and aclnnFastLayerNorm: their checks, their rows, and their two phases.

The order of the checks and their codes are those of the published code (aclnn_layer_norm.cpp,
aclnn_fast_layer_norm.cpp); ``strict`` adds what only the documents say. Every difference is listed in
docs/ascend.md, with its tests in tests/ascend/host_rules.csv.

All three compute the same here: the core's forward, in float32, each result rounded once. CANN: the implementation
modes and the fast function trade accuracy for speed on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lngrad.ascend.acl.enums import aclDataType, aclnnStatus
from lngrad.ascend.acl.interface import StatusError, invalid_argument
from lngrad.ascend.acl.tensor import TensorFacts, aclTensor
from lngrad.ascend.acl.values import aclIntArray
from lngrad.ascend.aclnn.checks import (
    Check,
    Wrong,
    dtypes_of_product,
    known_dtype,
    most_dims,
    normalized_rank,
    normalized_shape,
    of_tensors,
    own_places,
    parameter_dtype,
    parameter_shape,
    product_without,
    required,
    same_dtype,
    same_shape,
    strictly,
    usable,
)
from lngrad.ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad.ascend.aclnn.operator import FLOATS, AclnnCall, AclnnOperator
from lngrad.ascend.soc import Target
from lngrad.core.problem import FORWARD

_INPUTS = ("input", "weightOptional", "biasOptional")
_STATISTICS = ("meanOutOptional", "rstdOutOptional")
_OUTPUTS = ("out", *_STATISTICS)

IMPL_MODES = {0: "high precision", 1: "high performance", 2: "float16"}
FLOAT16_MODE = 2
FAST_MAX_ELEMENTS = 583_705_600  # normalized, of aclnnFastLayerNorm
FAST_ARCH = 2201  # Atlas A2 and A3 have it, by its page


def _statistics(exact: Callable[[AclnnCall], bool]) -> Check:
    @of_tensors
    def rule(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
        rows, count = math.prod(call.lead), math.prod(facts.shape)
        if exact(call) and facts.shape != call.rows:
            return f"the shape {call.rows}, one element per row of input, got {facts.shape}"
        if count == rows:
            return False
        # The code lets it pass here, and copies the results to no end.
        text = f"{name}: expected {rows} elements, one per row of input, got {count}: {facts.shape}"
        raise StatusError(aclnnStatus.ACLNN_ERR_INNER_NULLPTR, text)

    return rule(*_STATISTICS)


def _impl_mode(call: AclnnCall) -> None:
    mode = call.values["implMode"]
    if mode not in IMPL_MODES:
        known = ", ".join(f"{number} ({words})" for number, words in IMPL_MODES.items())
        raise invalid_argument(f"implMode: expected {known}, got {mode!r}")
    for name, tensor in call.given(*_INPUTS):
        if mode == FLOAT16_MODE and tensor.dtype != aclDataType.ACL_FLOAT16:
            raise invalid_argument(f"{name}: expected ACL_FLOAT16, as implMode is 2, got {tensor.dtype.name}")


def _fast_limit(call: AclnnCall) -> None:
    if math.prod(call.norm) > FAST_MAX_ELEMENTS:
        raise StatusError(
            aclnnStatus.ACLNN_ERR_INNER_NULLPTR,
            f"normalizedShape: expected at most {FAST_MAX_ELEMENTS} elements, got {call.norm}",
        )


def _forward(
    name: str,
    *own: Check,
    missing: Callable[[Target], bool] = lambda target: target.soc.arch == 2002 and target.documents == "master",
    exact: Callable[[AclnnCall], bool] = lambda call: call.strict or call.target.soc.regbase,
    dtypes: Callable[[Target], tuple[aclDataType, ...]] = dtypes_of_product,
) -> AclnnOperator:
    """The row of a forward function.

    Args:
        own: Checks that it alone has.
        missing: Which targets' pages do not list the product.
        exact: Whether mean and rstd must have their documented shape; else the right number of elements will do.
        dtypes: As Operator's.
    """
    return AclnnOperator(
        name,
        reads={"input": "x", "weightOptional": "gamma", "biasOptional": "beta"},
        writes={"out": "y", "meanOutOptional": "mean", "rstdOutOptional": "rstd"},
        core=(FORWARD,),
        numbers=("eps",),
        dtypes=dtypes,
        checks=(
            strictly(product_without(missing)),
            required("input", "normalizedShape", "out"),
            usable,
            known_dtype("input"),
            known_dtype("weightOptional"),
            parameter_dtype("weightOptional"),
            known_dtype("biasOptional"),
            parameter_dtype("biasOptional"),
            same_dtype("biasOptional", "weightOptional"),
            known_dtype(*_OUTPUTS),
            most_dims("input", "out", "weightOptional", "biasOptional", *_STATISTICS, "normalizedShape"),
            normalized_rank,
            normalized_shape,
            parameter_shape("weightOptional", "biasOptional"),
            same_shape("out", "input"),
            _statistics(exact),
            *own,
            own_places(*_OUTPUTS),
        ),
    )


LAYER_NORM = _forward("aclnnLayerNorm")
WITH_IMPL_MODE = _forward("aclnnLayerNormWithImplMode", _impl_mode)
FAST = _forward(
    "aclnnFastLayerNorm",
    _fast_limit,
    missing=lambda target: target.soc.arch != FAST_ARCH,
    exact=lambda call: True,
    dtypes=lambda target: dtypes_of_product(target) if target.mode == "strict" else FLOATS,
)


def aclnnLayerNormGetWorkspaceSize(
    input: aclTensor,
    normalizedShape: aclIntArray,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    eps: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    out = (input - mean)·rstd·weight + bias, with rstd = 1/sqrt(variance + eps) of each row.

    Args:
        input: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides; empty ones are taken.
        normalizedShape: [R1, …, Rj].
        weightOptional, biasOptional: [R1, …, Rj] in input's dtype or FLOAT, both in the same; None for 1 and for 0.
        eps: Added to the biased variance of a row.
        out: As input. May take the place of input exactly.
        meanOutOptional, rstdOutOptional: [A1, …, Ai, 1, …, 1], or None. Each output is rounded once to its tensor's
            own dtype.
    """
    arguments = (input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional)
    return phase1(LAYER_NORM, *arguments)


def aclnnLayerNormWithImplModeGetWorkspaceSize(
    input: aclTensor,
    normalizedShape: aclIntArray,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    eps: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
    implMode: int,
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    Args:
        input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional: As for
            aclnnLayerNormGetWorkspaceSize.
        implMode: 0 for high precision, 1 for high performance, 2 for float16, which wants ACL_FLOAT16 inputs. All
            compute with high precision here.
    """
    arguments = (input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional)
    return phase1(WITH_IMPL_MODE, *arguments, implMode)


def aclnnFastLayerNormGetWorkspaceSize(
    input: aclTensor,
    normalizedShape: aclIntArray,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    eps: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    Args:
        input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional: As for
            aclnnLayerNormGetWorkspaceSize; at most 583,705,600 normalized elements. Atlas A2 and A3 alone have it.
    """
    arguments = (input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional)
    return phase1(FAST, *arguments)


aclnnLayerNorm = phase2("aclnnLayerNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnLayerNormWithImplMode = phase2("aclnnLayerNormWithImplMode")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnFastLayerNorm = phase2("aclnnFastLayerNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""
