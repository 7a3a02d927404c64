"""The operators of root mean squares: aclnnRmsNorm, aclnnRmsNormGrad, aclnnGemmaRmsNorm, aclnnAddRmsNorm and
aclnnInplaceAddRmsNorm, with their checks, their rows, and their two phases.

The rules are those of the pages (ops-nn, norm/*/docs); the order of the checks, and what the published code checks
beside them, was not read: both modes follow the pages, and ``strict`` alone looks at the product. gamma's shape is the
normalized shape. docs/ascend.md lists the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lngrad.ascend.acl.tensor import TensorFacts, aclTensor
from lngrad.ascend.aclnn.checks import (
    INFERENCE_ARCH,
    TRAINING_ARCH,
    Check,
    Wrong,
    contiguous,
    dtypes_of_product,
    float32,
    in_strict,
    known_dtype,
    least_bytes,
    most_dims,
    normalized_rank,
    normalized_shape,
    not_empty,
    of_tensors,
    on_inference,
    one_per_row,
    own_places,
    parameter_dtype,
    product_without,
    required,
    rows_shape,
    same_dtype,
    same_shape,
    tiling,
    together,
    usable,
    when,
)
from lngrad.ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad.ascend.aclnn.operator import AclnnCall, AclnnOperator, AclnnOutput, Specs
from lngrad.core.problem import (
    ADD_RMS_FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    RMS_NORM,
    Normalization,
    Problem,
    RmsForward,
    RmsGrads,
    describe,
)


@of_tensors
def _rstd_shape_of_gemma(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """The page describes the first dimensions, and its example has ones after them."""
    return facts.shape not in (call.rows, call.lead) and f"the shape {call.rows} or {call.lead}, got {facts.shape}"


# Atlas inference has no gamma in FLOAT beside a 16-bit x.
_GAMMA_DTYPE = (
    when(on_inference, same_dtype("gamma", "x")),
    when(lambda call: not on_inference(call), parameter_dtype("gamma")),
)


def _forward(
    name: str,
    x: str = "x",
    y: str = "yOut",
    residual: str = "",
    total: str = "",
    missing: tuple[int, ...] = (TRAINING_ARCH,),
    normalization: Normalization = RMS_NORM,
    gamma_dtype: tuple[Check, ...] = (),
    rstd_shape: Callable[..., Check] = rows_shape,
    shapes: Callable[..., Check] = tiling,
    own: tuple[Check, ...] = (),
    last: tuple[Check, ...] = (),
) -> AclnnOperator:
    """The row of a forward function.

    Args:
        x, y, residual, total: The names of these tensors in its prototype; "" where it has none.
        missing: The architectures whose products its page does not list.
        gamma_dtype: What gamma's dtype has to be; by default that of x.
        shapes: Whose checks those of shapes are: the tiling's, or the first phase's own.
        own, last: Checks of shapes, and others, that it alone has.
    """

    def problem(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
        operator = ADD_RMS_FORWARD if residual else RMS_FORWARD
        return describe(operator, inputs, call.norm, operator.everything, RmsForward(*outputs), normalization)[0]

    reads = {x: "x", "gamma": "gamma"} | ({residual: "residual"} if residual else {})
    tensors = tuple(dict.fromkeys((*reads, y, "rstdOut", *([total] if total else []))))
    like_x = tuple(one for one in tensors if one not in (x, "gamma", "rstdOut"))
    return AclnnOperator(
        name,
        reads=reads,
        writes={
            y: AclnnOutput("out.y", like="x"),
            "rstdOut": AclnnOutput("out.rstd", like="rows", fill=math.nan),  # rows of nothing
            total: AclnnOutput("out.total", like="x"),
        },
        x=x,
        normalized="gamma",
        numbers=("epsilon",),
        dtypes=dtypes_of_product,
        problem=problem,
        checks=(
            when(in_strict, product_without(lambda target: target.soc.arch in missing)),
            required(*tensors),
            usable,
            known_dtype(*(one for one in tensors if one != "rstdOut")),
            *(gamma_dtype or (same_dtype("gamma", x),)),
            *(same_dtype(one, x) for one in like_x),
            float32("rstdOut"),
            shapes(
                most_dims(*tensors),
                normalized_rank,
                normalized_shape,
                *(same_shape(one, x) for one in like_x),
                rstd_shape("rstdOut"),
                *own,
            ),
            *last,
            own_places(*(one for one in tensors if one not in reads or one in (y, total))),
        ),
    )


def _gradient(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(RMS_BACKWARD, inputs, call.norm, call.mask, RmsGrads(*outputs), RMS_NORM)[0]


_LEAST_BYTES = when(on_inference, least_bytes("gamma"))

_OWN = (when(in_strict, not_empty("gamma")), _LEAST_BYTES)
RMS_NORM_FORWARD = _forward("aclnnRmsNorm", gamma_dtype=_GAMMA_DTYPE, own=_OWN)
GEMMA_RMS_NORM = _forward(
    "aclnnGemmaRmsNorm",
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    normalization=RMS_NORM._replace(offset=1.0),
    rstd_shape=_rstd_shape_of_gemma,
)
ADD_RMS_NORM = _forward("aclnnAddRmsNorm", "x1", residual="x2", total="xOut", shapes=together)
_ALL = ("x1Ref", "x2Ref", "gamma", "rstdOut")
INPLACE_ADD_RMS_NORM = _forward(
    "aclnnInplaceAddRmsNorm",
    *("x1Ref", "x1Ref", "x2Ref", "x2Ref"),
    own=(when(in_strict, not_empty(*_ALL)),),
    last=(when(in_strict, contiguous(*_ALL)),),
)

RMS_NORM_GRAD = AclnnOperator(
    "aclnnRmsNormGrad",
    reads={"dy": "dy", "x": "x", "rstd": "rstd", "gamma": "gamma"},
    writes={"dxOut": AclnnOutput("out.dx", like="x"), "dgammaOut": AclnnOutput("out.dgamma", like="columns")},
    x="x",
    normalized="gamma",
    dtypes=dtypes_of_product,
    problem=_gradient,
    checks=(
        when(in_strict, product_without(lambda target: target.soc.arch == TRAINING_ARCH)),
        required("dy", "x", "rstd", "gamma", "dxOut", "dgammaOut"),
        usable,
        known_dtype("dy", "x", "gamma", "dxOut"),
        same_dtype("dy", "x"),
        *_GAMMA_DTYPE,
        same_dtype("dxOut", "x"),
        float32("rstd", "dgammaOut"),
        tiling(
            most_dims("dy", "x", "rstd", "gamma", "dxOut", "dgammaOut"),
            normalized_rank,
            normalized_shape,
            same_shape("dy", "x"),
            one_per_row("rstd"),
            same_shape("dxOut", "x"),
            same_shape("dgammaOut", "gamma"),
            _LEAST_BYTES,
        ),
        own_places("dxOut", "dgammaOut"),
    ),
)


def aclnnRmsNormGetWorkspaceSize(
    x: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    yOut = x·rstd·gamma, with rstd = 1/sqrt(mean(x²) + epsilon) of each row.

    Args:
        x: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x's dtype or FLOAT; on Atlas inference in x's.
        epsilon: Added to the mean of the squares.
        yOut: As x. May take the place of x exactly.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(RMS_NORM_FORWARD, x, gamma, epsilon, yOut, rstdOut)


def aclnnRmsNormGradGetWorkspaceSize(
    dy: aclTensor, x: aclTensor, rstd: aclTensor, gamma: aclTensor, dxOut: aclTensor, dgammaOut: aclTensor
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With xhat = x·rstd and g = dy·gamma: dx = (g - xhat·mean(g·xhat))·rstd, dgamma = Σ dy·xhat over the rows.

    Args:
        dy, x: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        rstd: One element per row in FLOAT, used as it is.
        gamma: [R1, …, Rj] in x's dtype or FLOAT; on Atlas inference in x's.
        dxOut: As x. May take the place of dy or x exactly.
        dgammaOut: As gamma, in FLOAT.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(RMS_NORM_GRAD, dy, x, rstd, gamma, dxOut, dgammaOut)


def aclnnGemmaRmsNormGetWorkspaceSize(
    x: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    As aclnnRmsNormGetWorkspaceSize, with yOut = x·rstd·(1 + gamma).

    Args:
        x, epsilon, yOut: As there.
        gamma: [R1, …, Rj] in x's dtype.
        rstdOut: [A1, …, Ai, 1, …, 1] or [A1, …, Ai] in FLOAT.
    """
    return phase1(GEMMA_RMS_NORM, x, gamma, epsilon, yOut, rstdOut)


def aclnnAddRmsNormGetWorkspaceSize(
    x1: aclTensor, x2: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor, xOut: aclTensor
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    xOut = x1 + x2, rounded to its dtype, and yOut = xOut·rstd·gamma, as aclnnRmsNorm of xOut.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x1's dtype.
        epsilon: Added to the mean of the squares.
        yOut, xOut: As x1. Each may take the place of x1 or x2 exactly.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT.
    """
    return phase1(ADD_RMS_NORM, x1, x2, gamma, epsilon, yOut, rstdOut, xOut)


def aclnnInplaceAddRmsNormGetWorkspaceSize(
    x1Ref: aclTensor, x2Ref: aclTensor, gamma: aclTensor, epsilon: float, rstdOut: aclTensor
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    As aclnnAddRmsNormGetWorkspaceSize, with yOut in the place of x1Ref and xOut in that of x2Ref.

    Args:
        x1Ref, x2Ref, gamma, epsilon, rstdOut: As x1, x2, gamma, epsilon, rstdOut there, contiguous and not empty.
            CANN: the page calls rstdOut the root mean square; its reciprocal is what comes.
    """
    return phase1(INPLACE_ADD_RMS_NORM, x1Ref, x2Ref, gamma, epsilon, rstdOut)


aclnnRmsNorm = phase2("aclnnRmsNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnRmsNormGrad = phase2("aclnnRmsNormGrad")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnGemmaRmsNorm = phase2("aclnnGemmaRmsNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnAddRmsNorm = phase2("aclnnAddRmsNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnInplaceAddRmsNorm = phase2("aclnnInplaceAddRmsNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""
