"""aclnnLayerNorm, aclnnLayerNormWithImplMode, aclnnFastLayerNorm, aclnnLayerNormBackward, and aclnnLayerNormalizationGrad of
the experimental room: their checks in the documented order, their rows, and their two phases.

The order of the checks and their codes are those of the published code (aclnn_layer_norm.cpp, aclnn_fast_layer_norm.cpp,
aclnn_layer_norm_backward.cpp); ``strict`` adds what only the documents say, ``compat`` has the code's own rules in its place.
Every difference is listed in docs/ascend.md, with its tests in lngrad-ascend/tests/host_rules.csv.

The three forwards compute the same here: the core's forward, in float32, each result rounded once. CANN: the implementation
modes and the fast function trade accuracy for speed on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lngrad.core.problem import BACKWARD, FORWARD
from lngrad_ascend.acl.enums import aclDataType, aclnnStatus
from lngrad_ascend.acl.interface import StatusError, invalid_argument, returns_aclnnStatus
from lngrad_ascend.acl.streams import aclrtStream
from lngrad_ascend.acl.tensor import NUMPY_DTYPES, TensorFacts, aclTensor
from lngrad_ascend.acl.values import aclBoolArray, aclIntArray
from lngrad_ascend.aclnn import checks
from lngrad_ascend.aclnn.checks import Check, Wrong, norm_row, of_tensors
from lngrad_ascend.aclnn.executor import Phase1, aclOpExecutor, phase1, phase2, run
from lngrad_ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator
from lngrad_ascend.soc import Target

_PARAMETERS = ("weightOptional", "biasOptional")
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
        modes = ", ".join(f"{number} ({words})" for number, words in IMPL_MODES.items())
        raise invalid_argument(f"implMode: expected {modes}, got {mode!r}")
    for name, tensor in call.present("input", *_PARAMETERS):
        if mode == FLOAT16_MODE and tensor.dtype != aclDataType.ACL_FLOAT16:
            raise invalid_argument(f"{name}: expected ACL_FLOAT16, as implMode is 2, got {tensor.dtype.name}")


def _fast_limit(call: AclnnCall) -> None:
    if math.prod(call.norm) > FAST_MAX_ELEMENTS:
        text = f"normalizedShape: expected at most {FAST_MAX_ELEMENTS} elements, got {call.norm}"
        raise StatusError(aclnnStatus.ACLNN_ERR_INNER_NULLPTR, text)


def _forward(
    name: str,
    *own: Check,
    missing: Callable[[Target], bool] = lambda target: target.soc.arch == 2002 and target.documents == "master",
    exact: Callable[[AclnnCall], bool] = lambda call: call.strict or call.target.soc.regbase,
    dtypes: Callable[[Target], tuple[aclDataType, ...]] = checks.dtypes_of_product,
) -> AclnnOperator:
    """The row of a forward function.

    Args:
        own: Checks that it alone has.
        missing: Which targets' pages do not list the product.
        exact: Whether mean and rstd must have their documented shape; else the right number of elements will do.
    """
    return AclnnOperator(
        name,
        reads={"input": "x", "weightOptional": "gamma", "biasOptional": "beta"},
        writes={"out": "y", "meanOutOptional": "mean", "rstdOutOptional": "rstd"},
        core=(FORWARD,),
        numbers=("eps",),
        dtypes=dtypes,
        checks=(
            checks.strictly(checks.product_without(missing)),
            checks.required("input", "normalizedShape", "out"),
            checks.usable,
            checks.known_dtype("input"),
            checks.known_dtype("weightOptional"),
            checks.parameter_dtype("weightOptional"),
            checks.known_dtype("biasOptional"),
            checks.parameter_dtype("biasOptional"),
            checks.same_dtype("biasOptional", "weightOptional"),
            checks.known_dtype(*_OUTPUTS),
            checks.most_dims("input", "out", *_PARAMETERS, *_STATISTICS, "normalizedShape"),
            checks.normalized_rank,
            checks.normalized_shape,
            checks.parameter_shape(*_PARAMETERS),
            checks.same_shape("out", "input"),
            _statistics(exact),
            *own,
            checks.own_places(*_OUTPUTS),
        ),
    )


LAYER_NORM = _forward("aclnnLayerNorm")
WITH_IMPL_MODE = _forward("aclnnLayerNormWithImplMode", _impl_mode)
FAST = _forward(
    "aclnnFastLayerNorm",
    _fast_limit,
    missing=lambda target: target.soc.arch != FAST_ARCH,
    exact=lambda call: True,
    dtypes=lambda target: checks.dtypes_of_product(target) if target.mode == "strict" else FLOATS,
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
    """out = (input - mean)·rstd·weight + bias, with rstd = 1/sqrt(variance + eps) of each row.

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
    """As aclnnLayerNormGetWorkspaceSize, in a mode.

    Args:
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
    """As aclnnLayerNormGetWorkspaceSize, of at most 583,705,600 normalized elements. Atlas A2 and A3 alone have it."""
    arguments = (input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional, rstdOutOptional)
    return phase1(FAST, *arguments)


aclnnLayerNorm = phase2("aclnnLayerNorm")
aclnnLayerNormWithImplMode = phase2("aclnnLayerNormWithImplMode")
aclnnFastLayerNorm = phase2("aclnnFastLayerNorm")


_SUMS = ("gradWeightOut", "gradBiasOut")
_GRADIENTS = ("gradInputOut", *_SUMS)
_TENSORS = ("gradOut", "input", "mean", "rstd", *_PARAMETERS, *_GRADIENTS)


def _backward_dtypes(target: Target) -> tuple[aclDataType, ...]:
    """The published code has one list for all SoCs, the documents have one per product."""
    if target.mode == "compat":
        return FLOATS
    return checks.dtypes_of_product(target)


def _backward_without(target: Target) -> bool:
    """Whether the page does not list the product. That of 8.3 was written before Ascend 950 and 350: the newest page holds."""
    older, newer = ("Atlas inference", "Atlas training", "Atlas A2"), ("Atlas A3", "Ascend 950", "Atlas 350")
    return not target.soc.product.startswith(older if target.documents == "8.0.RC1" else older + newer)


def _tied(call: AclnnCall) -> bool:
    """The document of 8.0.RC1 ties no dtype to another. Its gradOut has input's and its weight input's or FLOAT all the same:
    the published code asks for these in every release."""
    return call.strict and call.target.documents != "8.0.RC1"


def _newest_page(call: AclnnCall) -> bool:
    """Whether the newest page holds, which refuses empty tensors and tensors without dimensions."""
    return call.strict and call.target.documents == "master"


def _wide_mean(call: AclnnCall) -> None:
    mean, wide = call.values["mean"].dtype, call.x.dtype
    if NUMPY_DTYPES[mean].itemsize < NUMPY_DTYPES[wide].itemsize:
        raise invalid_argument(f"mean: expected a dtype no narrower than input's, {wide.name}, got {mean.name}")


@of_tensors
def _float_sum(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    return facts.dtype != FLOAT and f"ACL_FLOAT, as CANN {call.target.cann} has it, got {facts.dtype.name}"


def _compared_shape(call: AclnnCall) -> None:
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


def _weight_shape(call: AclnnCall) -> None:
    """The weight, or the ones in its place, has the shape of input's last dimensions. In compat only the code's tiling looks,
    which it reaches with something to compute."""
    if call.norm != call.trailing and any(call.mask) and 0 not in call.x.shape:
        ones = "" if call.present("weightOptional") else ", of the ones in place of a null pointer"
        text = f"weightOptional: expected the last dimensions of input, {call.trailing}, got {call.norm}{ones}"
        raise invalid_argument(text)


LAYER_NORM_BACKWARD = AclnnOperator(
    "aclnnLayerNormBackward",
    reads={"gradOut": "dy", "input": "x", "mean": "mean", "rstd": "rstd", "weightOptional": "gamma"},
    writes={"gradInputOut": "dx", "gradWeightOut": "dgamma", "gradBiasOut": "dbeta"},
    core=(BACKWARD,),
    mask="outputMask",
    dtypes=_backward_dtypes,
    half_away=True,
    checks=(
        checks.strictly(checks.product_without(_backward_without)),
        checks.required("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask"),
        checks.usable,
        checks.mask_fits,
        checks.known_dtype("gradOut", "input", "mean", "rstd"),
        checks.same_dtype("gradOut", "input"),
        checks.when(_tied, _wide_mean, checks.same_dtype("rstd", "mean")),
        checks.known_dtype("weightOptional"),
        checks.parameter_dtype("weightOptional"),
        checks.known_dtype("biasOptional"),
        checks.when(_tied, checks.parameter_dtype("biasOptional"), checks.same_dtype("biasOptional", "weightOptional")),
        checks.known_dtype(*_GRADIENTS),
        checks.when(lambda call: call.strict and call.target.documents == "8.0.RC1", _float_sum(*_SUMS)),
        checks.when(_newest_page, *(check(name) for name in _TENSORS for check in (checks.dims, checks.not_empty))),
        checks.most_dims("gradOut", "input", "mean", "rstd", "normalizedShape", *_GRADIENTS),
        checks.normalized_rank,
        _compared_shape,
        *(check(name) for name in _PARAMETERS for check in (checks.most_dims, checks.parameter_shape)),
        checks.same_shape("gradOut", "input"),
        checks.one_per_row("mean"),
        checks.same_shape("rstd", "mean"),
        checks.same_shape("gradInputOut", "input"),
        checks.own_places("gradInputOut"),
        *(check(name) for name in _SUMS for check in (_sum_shape, checks.own_places)),
        checks.tiling(_weight_shape),
    ),
)
LAYER_NORMALIZATION_GRAD = norm_row(
    "aclnnLayerNormalizationGrad",
    reads={"dy": "dy", "x": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma"},
    writes={"dx": "dx", "dgamma": "dgamma", "dbeta": "dbeta"},
    core=(BACKWARD,),
    missing=checks.NOT_ON_950,
    dtype_checks=checks.all_as("x", "dy", "gamma", "mean", "rstd", "dx", "dgamma", "dbeta"),
    rstd_shape=checks.one_per_row,
    by_tiling=False,
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
    """With res = (input - mean)·rstd, dy_g = gradOut·weight, means over the normalized dimensions, sums over the
    others: gradInput = (dy_g - (mean(dy_g) + res·mean(dy_g·res)))·rstd, gradWeight = Σ gradOut·res, gradBias = Σ
    gradOut.

    Args:
        gradOut, input: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        normalizedShape: [R1, …, Rj].
        mean, rstd: One element per row, the same shape, used as they are.
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
    """Run an executor on a stream, and return at once; aclrtSynchronizeStream waits for the results.

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


def aclnnLayerNormalizationGradGetWorkspaceSize(
    dy: aclTensor,
    x: aclTensor,
    gamma: aclTensor,
    mean: aclTensor,
    rstd: aclTensor,
    dx: aclTensor,
    dgamma: aclTensor,
    dbeta: aclTensor,
) -> Phase1:
    """The gradients of aclnnLayerNormBackward, of the experimental room's operator.

    Args:
        dy, x: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj].
        mean, rstd: One element per row, used as they are.
        dx: As x. May take the place of dy or x exactly.
        dgamma, dbeta: As gamma. All are in one dtype.
    """
    return phase1(LAYER_NORMALIZATION_GRAD, dy, x, gamma, mean, rstd, dx, dgamma, dbeta)


aclnnLayerNormalizationGrad = phase2("aclnnLayerNormalizationGrad")
