"""aclnnLayerNormBackward: its checks in the documented order, its row, and its two phases.

The order of the checks and their codes are those of the published code (aclnn_layer_norm_backward.cpp); ``strict``
adds what only the documents say, ``compat`` has the code's own rules in its place. Every difference is listed in
docs/ascend.md, with its tests in tests/ascend/host_rules.csv.

Phase 1 is the core's plan, phase 2 runs it on the caller's outputs and workspace: there is no second arithmetic.
Which SoC, CANN release, mode and rounding apply is what ``lngrad.ascend.soc.use`` chose when phase 1 was called.
"""

from __future__ import annotations

import math

from lngrad.ascend.acl.enums import aclDataType, aclnnStatus
from lngrad.ascend.acl.interface import StatusError, invalid_argument, returns_aclnnStatus
from lngrad.ascend.acl.streams import aclrtStream
from lngrad.ascend.acl.tensor import NUMPY_DTYPES, TensorFacts, aclTensor
from lngrad.ascend.acl.values import aclBoolArray, aclIntArray
from lngrad.ascend.aclnn.checks import (
    MAX_DIMS,
    Wrong,
    dtypes_of_product,
    in_compat,
    known_dtype,
    mask_fits,
    most_dims,
    normalized_rank,
    of_tensors,
    one_per_row,
    own_places,
    parameter_dtype,
    parameter_shape,
    required,
    same_dtype,
    same_shape,
    usable,
    when,
)
from lngrad.ascend.aclnn.executor import Phase1, aclOpExecutor, phase1, run
from lngrad.ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator
from lngrad.ascend.soc import Target
from lngrad.core.problem import BACKWARD

_INPUTS = ("gradOut", "input", "mean", "rstd", "weightOptional", "biasOptional")
_SUMS = ("gradWeightOut", "gradBiasOut")
_OUTPUTS = ("gradInputOut", *_SUMS)


def _dtypes(target: Target) -> tuple[aclDataType, ...]:
    """The published code has one list for all SoCs, the documents have one per product."""
    if target.mode == "compat":
        return FLOATS
    if target.documents == "8.0.RC1":  # gives bfloat16 to Atlas A2 alone
        return FLOATS if target.soc.product.startswith("Atlas A2") else FLOATS[:2]
    return dtypes_of_product(target)


def _first_release(call: AclnnCall) -> bool:
    return call.strict and call.target.documents == "8.0.RC1"


def _tied(call: AclnnCall) -> bool:
    """The document of 8.0.RC1 lists dtypes, and ties none but the weight's to another."""
    return call.strict and call.target.documents != "8.0.RC1"


def _newest_page(call: AclnnCall) -> bool:
    return call.strict and call.target.documents == "master"


def _wide_mean(call: AclnnCall) -> None:
    mean, wide = call.values["mean"].dtype, call.x.dtype
    if NUMPY_DTYPES[mean].itemsize < NUMPY_DTYPES[wide].itemsize:
        raise invalid_argument(f"mean: expected a dtype no narrower than input's, {wide.name}, got {mean.name}")


@of_tensors
def _float_sum(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    return facts.dtype != FLOAT and f"ACL_FLOAT, as CANN {call.target.cann} has it, got {facts.dtype.name}"


@of_tensors
def _not_empty(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """The newest page refuses empty tensors, and tensors without dimensions."""
    if not 1 <= len(facts.shape) <= MAX_DIMS:
        return f"1 to {MAX_DIMS} dimensions, got {len(facts.shape)}: {facts.shape}"
    return 0 in facts.shape and f"a tensor that is not empty, got {facts.shape}"


def _normalized_shape(call: AclnnCall) -> None:
    """normalizedShape against input's last dimensions.

    CANN: the published loop begins at the first normalized axis instead of at 0, so that dimensions go uncompared:
    all of them as soon as input has twice as many as normalizedShape.
    """
    shape, norm, axis = call.x.shape, call.norm, len(call.lead)
    for position in range(0 if call.strict else axis, len(norm)):
        if norm[position] != shape[axis + position]:
            raise invalid_argument(
                f"normalizedShape: expected the last dimensions of input {shape}, got {norm}: {norm[position]} at "
                f"{position} against {shape[axis + position]}"
            )


@of_tensors
def _sum_shape(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    wanted, count = math.prod(call.trailing), math.prod(facts.shape)
    if call.strict and facts.shape != call.trailing:
        return f"the shape of normalizedShape, {call.trailing}, got {facts.shape}"
    return count != wanted and f"the {wanted} elements of normalizedShape, got {count}: {facts.shape}"


def _weight_of_tiling(call: AclnnCall) -> None:
    """In compat the checks let a weight pass that is not like input; the code's tiling stops it."""
    for name, weight in call.given("weightOptional"):
        if weight.shape != call.trailing:
            raise StatusError(
                aclnnStatus.ACLNN_ERR_INNER_TILING_ERROR,
                f"{name}: expected the last dimensions of input, {call.trailing}, got {weight.shape}",
            )


LAYER_NORM_BACKWARD = AclnnOperator(
    "aclnnLayerNormBackward",
    reads={"gradOut": "dy", "input": "x", "mean": "mean", "rstd": "rstd", "weightOptional": "gamma"},
    writes={"gradInputOut": "dx", "gradWeightOut": "dgamma", "gradBiasOut": "dbeta"},
    core=(BACKWARD,),
    mask="outputMask",
    dtypes=_dtypes,
    half_away=True,
    checks=(
        required("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask"),
        usable,
        mask_fits,
        known_dtype("gradOut", "input", "mean", "rstd"),
        same_dtype("gradOut", "input"),
        when(_tied, _wide_mean, same_dtype("rstd", "mean")),
        known_dtype("weightOptional"),
        parameter_dtype("weightOptional"),
        known_dtype("biasOptional"),
        when(_tied, parameter_dtype("biasOptional"), same_dtype("biasOptional", "weightOptional")),
        known_dtype(*_OUTPUTS),
        when(_first_release, _float_sum(*_SUMS)),
        when(_newest_page, _not_empty(*_INPUTS, *_OUTPUTS)),
        most_dims("gradOut", "input", "mean", "rstd", "normalizedShape", *_OUTPUTS),
        normalized_rank,
        _normalized_shape,
        *(check(name) for name in ("weightOptional", "biasOptional") for check in (most_dims, parameter_shape)),
        same_shape("gradOut", "input"),
        when(in_compat, same_shape("rstd", "mean")),
        one_per_row("mean", "rstd"),
        same_shape("gradInputOut", "input"),
        own_places("gradInputOut"),
        *(check(name) for name in _SUMS for check in (_sum_shape, own_places)),
        _weight_of_tiling,
    ),
)


def aclnnLayerNormBackwardGetWorkspaceSize(
    gradOut: aclTensor,
    input: aclTensor,
    normalizedShape: aclIntArray,
    mean: aclTensor,
    rstd: aclTensor,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    outputMask: aclBoolArray,
    gradInputOut: aclTensor | None,
    gradWeightOut: aclTensor | None,
    gradBiasOut: aclTensor | None,
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With res = (input - mean)·rstd, dy_g = gradOut·weight, means over the normalized dimensions, sums over the
    others: gradInput = (dy_g - (mean(dy_g) + res·mean(dy_g·res)))·rstd, gradWeight = Σ gradOut·res, gradBias = Σ
    gradOut.

    Args:
        gradOut, input: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        normalizedShape: [R1, …, Rj].
        mean, rstd: One element per row, used as they are.
        weightOptional: [R1, …, Rj] in input's dtype or FLOAT; None for 1.
        biasOptional: Checked as weightOptional is, and never read.
        outputMask: Three booleans: which outputs are wanted. The others may be None and are never touched.
        gradInputOut: As input; gradWeightOut, gradBiasOut: [R1, …, Rj]. Each is rounded once to its tensor's own
            dtype.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    arguments = (gradOut, input, normalizedShape, mean, rstd, weightOptional, biasOptional, outputMask)
    return phase1(LAYER_NORM_BACKWARD, *arguments, gradInputOut, gradWeightOut, gradBiasOut)


@returns_aclnnStatus
def aclnnLayerNormBackward(
    workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None
) -> None:
    """Run an executor on a stream: returns at once, the results are there after
    aclrtSynchronizeStream.

    An executor runs once, unless it was made repeatable; a failure, too, uses it up.

    Args:
        workspace: A device address or a writable host buffer; None if the size is 0. No tensor's memory, and the
            stream's alone until it has run.
        workspaceSize: At least what phase 1 returned.
        executor: From phase 1.
        stream: From aclrtCreateStream, or None for the default stream.

    Returns:
        ACLNN_ERR_PARAM_NULLPTR for a null executor, workspace or data address; ACLNN_ERR_PARAM_INVALID for anything
        else that can't be run. Nothing was written then.

    CANN: memory that an output shares with an input, another output or the workspace goes unnoticed; here it is
    refused, unless gradInputOut takes the place of gradOut or input exactly.
    """
    run(workspace, workspaceSize, executor, stream)
