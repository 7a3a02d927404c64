"""aclnnAddLayerNorm, aclnnDeepNorm and their gradients: layer normalization of a sum. Checks, rows, and the two phases.

The sum is made in float32 and not rounded before it is normalized, as the published kernels have it; each result is
rounded once. The rules are those of the pages (ops-nn, norm/*/docs) and of the published tiling, in the order of the
latter: the first phase looks at null pointers and dtypes, the tiling at shapes. gamma's shape is the normalized shape.
docs/ascend.md lists the rules.
"""

from __future__ import annotations

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.interface import invalid_argument
from lngrad.ascend.acl.tensor import TensorFacts, aclTensor
from lngrad.ascend.aclnn.checks import (
    Wrong,
    contiguous,
    dtype_row,
    dtypes_of_product,
    float32,
    in_compat,
    known_dtype,
    least_bytes,
    norm_row,
    not_empty,
    of_tensors,
    strictly,
    tiling,
    when,
)
from lngrad.ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad.ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, Copy
from lngrad.ascend.soc import Target
from lngrad.core.problem import ADD_BACKWARD, BACKWARD, FORWARD


def _sums(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnAddLayerNorm's table: x1, x2, gamma, beta, biasOptional, yOut, xOut. The page has none for Ascend 950."""
    equal = tuple((dtype,) * 7 for dtype in dtypes_of_product(target))
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
    dtype_checks=(known_dtype(*_ADDED), dtype_row(_ADDED, _sums), float32("meanOut", "rstdOut")),
    own=(
        _bias_shape("biasOptional"),
        not_empty("x1", "gamma", "meanOut"),
        least_bytes("x1", "x2", "beta", "gamma", "biasOptional"),
    ),
    after=(strictly(contiguous(*_FORWARD, "xOut")),),
)
ADD_LAYER_NORM_GRAD = norm_row(
    "aclnnAddLayerNormGrad",
    reads={"dy": "dy", "x1": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma", "dsumOptional": "dtotal"},
    terms=("x2",),
    writes={"dxOut": "dx", **_SUMS},
    core=(BACKWARD, ADD_BACKWARD),
    own=(not_empty("dy", "gamma"),),
)
# The page takes empty tensors, the published tiling does not.
_OWN = (_a_leading_dimension, when(in_compat, tiling(not_empty("x"))))
DEEP_NORM = norm_row(
    "aclnnDeepNorm",
    reads={"x": "x", "gamma": "gamma", "beta": "beta"},
    terms=("gx",),
    writes=_FORWARD,
    core=(FORWARD,),
    alpha="alpha",
    by_tiling=False,
    own=_OWN,
    after=(strictly(contiguous(*_FORWARD)),),
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
    after=(strictly(contiguous("dgxOut", *_SUMS, "dxOut")),),
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
