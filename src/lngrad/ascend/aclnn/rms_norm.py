"""The operators of root mean squares: aclnnRmsNorm, aclnnRmsNormGrad, aclnnGemmaRmsNorm, aclnnAddRmsNorm and
aclnnInplaceAddRmsNorm, with their checks, their rows, and their two phases.

The rules are those of the pages (ops-nn, norm/*/docs); the order of the checks, and what the published code checks
beside them, was not read: both modes follow the pages, and ``strict`` alone looks at the product. gamma's shape is the
normalized shape. docs/ascend.md lists the rules.
"""

from __future__ import annotations

from lngrad.ascend.acl.tensor import TensorFacts, aclTensor
from lngrad.ascend.aclnn.checks import (
    INFERENCE_ARCH,
    TRAINING_ARCH,
    Wrong,
    contiguous,
    least_bytes,
    norm_row,
    not_empty,
    of_tensors,
    on_inference,
    one_per_row,
    parameter_dtype,
    same_dtype,
    strictly,
    when,
)
from lngrad.ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad.ascend.aclnn.operator import AclnnCall
from lngrad.core.problem import ADD_RMS_FORWARD, RMS_BACKWARD, RMS_FORWARD, RMS_NORM


@of_tensors
def _rstd_shape_of_gemma(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """The page describes the first dimensions, and its example has ones after them."""
    return facts.shape not in (call.rows, call.lead) and f"the shape {call.rows} or {call.lead}, got {facts.shape}"


# Atlas inference has no gamma in FLOAT beside a 16-bit x.
_GAMMA_DTYPE = (
    when(on_inference, same_dtype("gamma", "x")),
    when(lambda call: not on_inference(call), parameter_dtype("gamma")),
)


_ALL = ("x1Ref", "x2Ref", "gamma", "rstdOut")

RMS_NORM_FORWARD = norm_row(
    "aclnnRmsNorm",
    reads={"x": "x", "gamma": "gamma"},
    writes={"yOut": "y", "rstdOut": "rstd", "(total)": "total"},
    core=(RMS_FORWARD,),
    gamma_dtype=_GAMMA_DTYPE,
    own=(strictly(not_empty("gamma")), least_bytes("gamma")),
)
GEMMA_RMS_NORM = norm_row(
    "aclnnGemmaRmsNorm",
    reads={"x": "x", "gamma": "gamma"},
    writes={"yOut": "y", "rstdOut": "rstd", "(total)": "total"},
    core=(RMS_FORWARD,),
    normalization=RMS_NORM._replace(offset=1.0),
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    rstd_shape=_rstd_shape_of_gemma,
)
ADD_RMS_NORM = norm_row(
    "aclnnAddRmsNorm",
    reads={"x1": "x", "gamma": "gamma", "x2": "residual"},
    writes={"yOut": "y", "rstdOut": "rstd", "xOut": "total"},
    core=(ADD_RMS_FORWARD,),
    by_tiling=False,
)
INPLACE_ADD_RMS_NORM = norm_row(
    "aclnnInplaceAddRmsNorm",
    reads={"x1Ref": "x", "gamma": "gamma", "x2Ref": "residual"},
    writes={"x1Ref": "y", "rstdOut": "rstd", "x2Ref": "total"},
    core=(ADD_RMS_FORWARD,),
    own=(strictly(not_empty(*_ALL)),),
    after=(strictly(contiguous(*_ALL)),),
)
RMS_NORM_GRAD = norm_row(
    "aclnnRmsNormGrad",
    reads={"dy": "dy", "x": "x", "rstd": "rstd", "gamma": "gamma"},
    writes={"dxOut": "dx", "dgammaOut": "dgamma"},
    core=(RMS_BACKWARD,),
    gamma_dtype=_GAMMA_DTYPE,
    rstd_shape=one_per_row,
    own=(least_bytes("gamma"),),
)


def aclnnRmsNormGetWorkspaceSize(
    x: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor
) -> Phase1:
    """yOut = x·rstd·gamma, with rstd = 1/sqrt(mean(x²) + epsilon) of each row.

    Args:
        x: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x's dtype or FLOAT; on Atlas inference in x's.
        epsilon: Added to the mean of the squares.
        yOut: As x. May take the place of x exactly.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT.
    """
    return phase1(RMS_NORM_FORWARD, x, gamma, epsilon, yOut, rstdOut)


def aclnnRmsNormGradGetWorkspaceSize(
    dy: aclTensor, x: aclTensor, rstd: aclTensor, gamma: aclTensor, dxOut: aclTensor, dgammaOut: aclTensor
) -> Phase1:
    """With xhat = x·rstd and g = dy·gamma: dx = (g - xhat·mean(g·xhat))·rstd, dgamma = Σ dy·xhat over the rows.

    Args:
        dy, x: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        rstd: One element per row in FLOAT, used as it is.
        gamma: [R1, …, Rj] in x's dtype or FLOAT; on Atlas inference in x's.
        dxOut: As x. May take the place of dy or x exactly.
        dgammaOut: As gamma, in FLOAT.
    """
    return phase1(RMS_NORM_GRAD, dy, x, rstd, gamma, dxOut, dgammaOut)


def aclnnGemmaRmsNormGetWorkspaceSize(
    x: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor
) -> Phase1:
    """As aclnnRmsNormGetWorkspaceSize, with yOut = x·rstd·(1 + gamma).

    Args:
        x, epsilon, yOut: As there.
        gamma: [R1, …, Rj] in x's dtype.
        rstdOut: [A1, …, Ai, 1, …, 1] or [A1, …, Ai] in FLOAT.
    """
    return phase1(GEMMA_RMS_NORM, x, gamma, epsilon, yOut, rstdOut)


def aclnnAddRmsNormGetWorkspaceSize(
    x1: aclTensor, x2: aclTensor, gamma: aclTensor, epsilon: float, yOut: aclTensor, rstdOut: aclTensor, xOut: aclTensor
) -> Phase1:
    """xOut = x1 + x2, rounded to its dtype, and yOut = xOut·rstd·gamma, as aclnnRmsNorm of xOut.

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
    """As aclnnAddRmsNormGetWorkspaceSize, with yOut in the place of x1Ref and xOut in that of x2Ref.

    Args:
        x1Ref, x2Ref, gamma, epsilon, rstdOut: As x1, x2, gamma, epsilon, rstdOut there, contiguous and not empty.
            CANN: the page calls rstdOut the root mean square; its reciprocal is what comes.
    """
    return phase1(INPLACE_ADD_RMS_NORM, x1Ref, x2Ref, gamma, epsilon, rstdOut)


aclnnRmsNorm = phase2("aclnnRmsNorm")
aclnnRmsNormGrad = phase2("aclnnRmsNormGrad")
aclnnGemmaRmsNorm = phase2("aclnnGemmaRmsNorm")
aclnnAddRmsNorm = phase2("aclnnAddRmsNorm")
aclnnInplaceAddRmsNorm = phase2("aclnnInplaceAddRmsNorm")
