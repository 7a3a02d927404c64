"""RMS norms, layer norms of a sum, and their gradients, with their checks, their rows, and their two phases: aclnnRmsNorm,
aclnnRmsNormGrad, aclnnGemmaRmsNorm, aclnnAddRmsNorm, aclnnInplaceAddRmsNorm; aclnnAddLayerNorm, aclnnDeepNorm and theirs.

The rules are those of the pages (ops-nn, norm/*/docs), and docs/ascend.md lists them. gamma's shape is the normalized shape.
Of RMS norms the published code was not read: both modes follow the pages, and ``strict`` alone looks at the product. Of
layer norms the published tiling was read, whose order the checks have: the first phase looks at null pointers and dtypes,
the tiling at shapes. Their sum is made in float32 and not rounded before it is normalized, as the published kernels have it.
"""

from __future__ import annotations

from lngrad.core.problem import ADD_BACKWARD, ADD_RMS_FORWARD, BACKWARD, FORWARD, RMS_BACKWARD, RMS_FORWARD, RMS_NORM
from lngrad_ascend.acl.enums import aclDataType
from lngrad_ascend.acl.interface import invalid_argument
from lngrad_ascend.acl.tensor import TensorFacts, aclTensor
from lngrad_ascend.aclnn import checks
from lngrad_ascend.aclnn.checks import Wrong, norm_row, of_tensors
from lngrad_ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad_ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, Copy
from lngrad_ascend.soc import Target

# Atlas inference has no gamma in FLOAT beside a 16-bit x.
_GAMMA_DTYPE = (
    checks.when(checks.on_inference, checks.same_dtype("gamma", "x")),
    checks.when(lambda call: not checks.on_inference(call), checks.parameter_dtype("gamma")),
)
_ALL = ("x1Ref", "x2Ref", "gamma", "rstdOut")

RMS_NORM_FORWARD = norm_row(
    "aclnnRmsNorm",
    reads={"x": "x", "gamma": "gamma"},
    writes={"yOut": "y", "rstdOut": "rstd", "(total)": "total"},
    core=(RMS_FORWARD,),
    gamma_dtype=_GAMMA_DTYPE,
    own=(checks.strictly(checks.not_empty("gamma")), checks.least_bytes("gamma")),
)
GEMMA_RMS_NORM = norm_row(
    "aclnnGemmaRmsNorm",
    reads={"x": "x", "gamma": "gamma"},
    writes={"yOut": "y", "rstdOut": "rstd", "(total)": "total"},
    core=(RMS_FORWARD,),
    normalization=RMS_NORM._replace(offset=1.0),
    missing=(checks.TRAINING_ARCH, checks.INFERENCE_ARCH),
    # The page describes the first dimensions, and its example has ones after them.
    rstd_shape=checks.shape_among(lambda call: (call.rows, call.lead)),
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
    own=(checks.strictly(checks.not_empty(*_ALL)),),
    after=(checks.strictly(checks.contiguous(*_ALL)),),
)
RMS_NORM_GRAD = norm_row(
    "aclnnRmsNormGrad",
    reads={"dy": "dy", "x": "x", "rstd": "rstd", "gamma": "gamma"},
    writes={"dxOut": "dx", "dgammaOut": "dgamma"},
    core=(RMS_BACKWARD,),
    gamma_dtype=_GAMMA_DTYPE,
    rstd_shape=checks.one_per_row,
    own=(checks.least_bytes("gamma"),),
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


def _sums(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnAddLayerNorm's table: x1, x2, gamma, beta, biasOptional, yOut, xOut. The page has none for Ascend 950."""
    equal = tuple((dtype,) * 7 for dtype in checks.dtypes_of_product(target))
    if not target.soc.bf16:
        return equal
    mixed = tuple(row for dtype in FLOATS[1:] for row in ((FLOAT, dtype), (dtype, FLOAT)))
    of_floats = tuple((dtype, dtype, FLOAT, FLOAT, dtype, dtype, dtype) for dtype in FLOATS[1:])
    return (*((*row, *(FLOAT,) * 5) for row in mixed), *of_floats, *equal)


@of_tensors
def _bias_shape(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    norm, x = call.norm, call.x.shape
    return facts.shape not in (norm, x) and f"the shape of gamma, {norm}, or of x1, {x}, got {facts.shape}"


def _a_leading_dimension(call: AclnnCall) -> None:
    if not call.lead:
        raise invalid_argument(f"gamma: expected fewer dimensions than x has, got {call.norm} for {call.x.shape}")


_FORWARD = {"yOut": "y", "meanOut": "mean", "rstdOut": "rstd"}
_SUMS = {"dgammaOut": "dgamma", "dbetaOut": "dbeta"}
_ADDED = ("x1", "x2", "gamma", "beta", "biasOptional", "yOut", "xOut")

ADD_LAYER_NORM = norm_row(
    "aclnnAddLayerNorm",
    reads={"x1": "x", "gamma": "gamma", "beta": "beta"},
    terms=("x2", "biasOptional"),
    writes=_FORWARD,
    copies={"xOut": Copy("x", when="additionalOutput")},
    core=(FORWARD,),
    dtype_checks=(checks.known_dtype(*_ADDED), checks.dtype_row(_ADDED, _sums), checks.float32("meanOut", "rstdOut")),
    own=(
        _bias_shape("biasOptional"),
        checks.not_empty("x1", "gamma", "meanOut"),
        checks.least_bytes("x1", "x2", "beta", "gamma", "biasOptional"),
    ),
    after=(checks.strictly(checks.contiguous(*_FORWARD, "xOut")),),
)
ADD_LAYER_NORM_GRAD = norm_row(
    "aclnnAddLayerNormGrad",
    reads={"dy": "dy", "x1": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma", "dsumOptional": "dtotal"},
    terms=("x2",),
    writes={"dxOut": "dx", **_SUMS},
    core=(BACKWARD, ADD_BACKWARD),
    own=(checks.not_empty("dy", "gamma"),),
)
# The page takes empty tensors, the published tiling does not.
_OWN = (_a_leading_dimension, checks.when(lambda call: not call.strict, checks.tiling(checks.not_empty("x"))))
DEEP_NORM = norm_row(
    "aclnnDeepNorm",
    reads={"x": "x", "gamma": "gamma", "beta": "beta"},
    terms=("gx",),
    writes=_FORWARD,
    core=(FORWARD,),
    alpha="alpha",
    by_tiling=False,
    own=_OWN,
    after=(checks.strictly(checks.contiguous(*_FORWARD)),),
)
DEEP_NORM_GRAD = norm_row(
    "aclnnDeepNormGrad",
    reads={"dy": "dy", "x": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma"},
    terms=("gx",),
    writes={"dgxOut": "dx", **_SUMS},
    copies={"dxOut": Copy("dx", factor="alpha")},
    core=(BACKWARD,),
    alpha="alpha",
    by_tiling=False,
    own=_OWN,
    after=(checks.strictly(checks.contiguous("dgxOut", *_SUMS, "dxOut")),),
)


def aclnnAddLayerNormGetWorkspaceSize(
    x1: aclTensor,
    x2: aclTensor,
    gamma: aclTensor,
    beta: aclTensor,
    biasOptional: aclTensor | None,
    epsilon: float,
    additionalOutput: bool,
    yOut: aclTensor,
    meanOut: aclTensor,
    rstdOut: aclTensor,
    xOut: aclTensor,
) -> Phase1:
    """With x = x1 + x2 + biasOptional in float32: yOut = (x - mean)·rstd·gamma + beta, as aclnnLayerNorm of x.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], not empty, 1 to 8 dimensions, any strides. One may be in FLOAT beside a
            16-bit other, except on Atlas inference; gamma, beta and what is like x are in FLOAT then.
        gamma, beta: [R1, …, Rj], both in x's dtype or, except on Atlas inference, in FLOAT.
        biasOptional: As gamma or as x1, in the dtype of yOut; None for 0.
        epsilon: Added to the biased variance of a row.
        additionalOutput: Whether xOut is written.
        yOut, xOut: As x1, contiguous. Each may take the place of x1 or x2 exactly.
        meanOut, rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous. CANN: without meaning on Atlas inference.
    """
    inputs = (x1, x2, gamma, beta, biasOptional, epsilon, additionalOutput)
    return phase1(ADD_LAYER_NORM, *inputs, yOut, meanOut, rstdOut, xOut)


def aclnnAddLayerNormGradGetWorkspaceSize(
    dy: aclTensor,
    x1: aclTensor,
    x2: aclTensor,
    rstd: aclTensor,
    mean: aclTensor,
    gamma: aclTensor,
    dsumOptional: aclTensor | None,
    dxOut: aclTensor,
    dgammaOut: aclTensor,
    dbetaOut: aclTensor,
) -> Phase1:
    """With x = x1 + x2 in float32: the gradients of aclnnLayerNormBackward at x; dxOut has dsumOptional added. CANN: the
    page writes rstd without epsilon and, in its short form of dxOut, has a sign wrong; the kernels do not.

    Args:
        dy, x1, x2: [A1, …, Ai, R1, …, Rj], not empty, the same dtype, 1 to 8 dimensions, any strides.
        rstd, mean: [A1, …, Ai, 1, …, 1] in FLOAT, used as they are; rstd comes first.
        gamma: [R1, …, Rj] in dy's dtype.
        dsumOptional: The gradient of x where it was used besides, as dy; None for 0.
        dxOut: As dy. May take the place of dy, x1 or x2 exactly.
        dgammaOut, dbetaOut: As gamma, in FLOAT.
    """
    return phase1(ADD_LAYER_NORM_GRAD, dy, x1, x2, rstd, mean, gamma, dsumOptional, dxOut, dgammaOut, dbetaOut)


def aclnnDeepNormGetWorkspaceSize(
    x: aclTensor,
    gx: aclTensor,
    beta: aclTensor,
    gamma: aclTensor,
    alpha: float,
    epsilon: float,
    meanOut: aclTensor,
    rstdOut: aclTensor,
    yOut: aclTensor,
) -> Phase1:
    """With h = alpha·x + gx in float32: yOut = (h - mean)·rstd·gamma + beta, as aclnnLayerNorm of h.

    Args:
        x, gx: [A1, …, Ai, R1, …, Rj], the same dtype, 2 to 8 dimensions, any strides.
        beta, gamma: [R1, …, Rj] in x's dtype, of fewer dimensions than x; beta comes first.
        alpha: What x is multiplied with.
        epsilon: Added to the biased variance of a row.
        meanOut, rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous.
        yOut: As x, contiguous. May take the place of x or gx exactly.
    """
    return phase1(DEEP_NORM, x, gx, beta, gamma, alpha, epsilon, meanOut, rstdOut, yOut)


def aclnnDeepNormGradGetWorkspaceSize(
    dy: aclTensor,
    x: aclTensor,
    gx: aclTensor,
    gamma: aclTensor,
    mean: aclTensor,
    rstd: aclTensor,
    alpha: float,
    dxOut: aclTensor,
    dgxOut: aclTensor,
    dbetaOut: aclTensor,
    dgammaOut: aclTensor,
) -> Phase1:
    """With h = alpha·x + gx in float32: the gradients of aclnnLayerNormBackward at h; dgxOut is h's, dxOut = alpha·dgx.
    CANN: not deterministic on a device; here it is.

    Args:
        dy, x, gx: [A1, …, Ai, R1, …, Rj], the same dtype, 2 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x's dtype, of fewer dimensions than x.
        mean, rstd: [A1, …, Ai, 1, …, 1] in FLOAT, used as they are.
        alpha: What x was multiplied with.
        dxOut, dgxOut: As x, contiguous. Each may take the place of dy, x or gx exactly.
        dbetaOut, dgammaOut: As gamma, in FLOAT, contiguous; dbetaOut comes first.
    """
    return phase1(DEEP_NORM_GRAD, dy, x, gx, gamma, mean, rstd, alpha, dxOut, dgxOut, dbetaOut, dgammaOut)


aclnnAddLayerNorm = phase2("aclnnAddLayerNorm")
aclnnAddLayerNormGrad = phase2("aclnnAddLayerNormGrad")
aclnnDeepNorm = phase2("aclnnDeepNorm")
aclnnDeepNormGrad = phase2("aclnnDeepNormGrad")
