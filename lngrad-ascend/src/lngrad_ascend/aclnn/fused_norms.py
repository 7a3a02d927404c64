"""Norms with what follows them in one operator: aclnnAddRmsNormCast and aclnnFusedAddRmsNorm, aclnnAdaLayerNorm and its V2.
quantized_norms has those that end in INT8.

The core's norm is kept in float32, and what follows is done in float64 and rounded once. A sum is not rounded before it is
normalized. The rules are those of the pages (ops-nn, norm/*/docs) and of the published first phases, in the order of the
latter: null pointers, dtypes, shapes. docs/ascend.md lists the rules.
"""

from __future__ import annotations

from lngrad.core.problem import FORWARD, RMS_FORWARD
from lngrad.typing import Array, Shape
from lngrad_ascend.acl.interface import invalid_argument
from lngrad_ascend.acl.tensor import aclTensor
from lngrad_ascend.aclnn import checks
from lngrad_ascend.aclnn.checks import Check, norm_row
from lngrad_ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad_ascend.aclnn.operator import FLOATS, AclnnCall, AclnnOperator, Copy

SIXTEEN = FLOATS[1:]


def _modulated(y: Array, scale: Array, shift: Array) -> Array:
    modulated: Array = y * (1 + scale) + shift
    return modulated


@checks.shape_among
def _per_batch(call: AclnnCall) -> tuple[Shape, ...]:
    """Scale and shift have one row for each batch."""
    *batch, _, size = call.x.shape
    return (*batch, size), (*batch, 1, size)


def _two_dims(call: AclnnCall) -> None:
    if not 2 <= len(call.x.shape) <= checks.MAX_DIMS:
        raise invalid_argument(
            f"x: expected 2 to {checks.MAX_DIMS} dimensions, got {len(call.x.shape)}: {call.x.shape}"
        )


# Results of the core that a prototype lacks lie in the workspace alone.
INSIDE_RMS = {"(y)": "y", "(rstd)": "rstd", "(total)": "total"}
INSIDE = {"(y)": "y", "(mean)": "mean", "(rstd)": "rstd"}
_PARAMETERS = ("weightOptional", "biasOptional")

ADD_RMS_NORM_CAST = norm_row(
    "aclnnAddRmsNormCast",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes={"y1Out": "y", "rstdOut": "rstd", "(total)": "total"},
    copies={"y2Out": Copy("y"), "xOut": Copy("x")},
    core=(RMS_FORWARD,),
    missing=(checks.TRAINING_ARCH, checks.INFERENCE_ARCH),
    dtype_checks=(*checks.all_as("x1", "x2", "gamma", "y2Out", "xOut"), checks.float32("y1Out", "rstdOut")),
    own=(checks.strictly(checks.contiguous("y1Out", "y2Out", "rstdOut", "xOut")),),
    dtypes=lambda target: SIXTEEN if target.soc.bf16 else SIXTEEN[:1],
)
FUSED_ADD_RMS_NORM = norm_row(
    "aclnnFusedAddRmsNorm",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes={"yOut": "y", "rstdOut": "rstd", "(total)": "total"},
    copies={"xOut": Copy("x")},
    core=(RMS_FORWARD,),
    alpha="scale",
    missing=(checks.TRAINING_ARCH, checks.INFERENCE_ARCH),
    by_tiling=False,
    own=(checks.strictly(checks.not_empty("x1", "gamma")),),
)


def _ada(
    name: str, missing: tuple[int, ...], parameters: tuple[Check, ...], statistics: tuple[str, ...]
) -> AclnnOperator:
    mean, rstd = statistics or ("(mean)", "(rstd)")
    return norm_row(
        name,
        reads={"x": "x", "weightOptional": "gamma", "biasOptional": "beta"},
        writes={"(y)": "y", mean: "mean", rstd: "rstd"},
        copies={"out": Copy("y", by=_modulated, of=("scale", "shift"))},
        core=(FORWARD,),
        normalized="scale",
        last=True,
        missing=missing,
        dtype_checks=(*checks.all_as("x", "scale", "shift", "out", *statistics), *parameters),
        by_tiling=False,
        shape_checks=(
            _two_dims,
            checks.strictly(checks.not_empty("x")),
            _per_batch("scale", "shift"),
            checks.shape_among(lambda call: (call.x.shape[-1:],))(*_PARAMETERS),
            checks.same_shape("out", "x"),
            checks.rows_shape(*statistics),
        ),
    )


ADA_LAYER_NORM = _ada(
    "aclnnAdaLayerNorm", checks.NOT_ON_950, tuple(checks.same_dtype(name, "x") for name in _PARAMETERS), ()
)
ADA_LAYER_NORM_V2 = _ada(
    "aclnnAdaLayerNormV2",
    (checks.TRAINING_ARCH, checks.INFERENCE_ARCH),
    (checks.parameter_dtype(*_PARAMETERS), checks.same_dtype(*_PARAMETERS)),
    ("meanOutOptional", "rstdOutOptional"),
)


def aclnnAddRmsNormCastGetWorkspaceSize(
    x1: aclTensor,
    x2: aclTensor,
    gamma: aclTensor,
    epsilon: float,
    y1Out: aclTensor,
    y2Out: aclTensor,
    rstdOut: aclTensor,
    xOut: aclTensor,
) -> Phase1:
    """With x = x1 + x2 in float32: y1Out = x·rstd·gamma, y2Out = y1Out in x1's dtype, xOut = x in it. CANN: kernels round
    y1Out to 16 bits too.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj] in FLOAT16 or BFLOAT16, 1 to 8 dimensions, any strides.
        gamma, epsilon: As for aclnnAddRmsNorm.
        y1Out: As x1, in FLOAT, contiguous.
        y2Out, xOut: As x1, contiguous.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous.
    """
    return phase1(ADD_RMS_NORM_CAST, x1, x2, gamma, epsilon, y1Out, y2Out, rstdOut, xOut)


def aclnnFusedAddRmsNormGetWorkspaceSize(
    x1: aclTensor,
    x2: aclTensor,
    gamma: aclTensor,
    epsilon: float,
    scale: float,
    yOut: aclTensor,
    rstdOut: aclTensor,
    xOut: aclTensor,
) -> Phase1:
    """With x = scale·x1 + x2 in float32: yOut = x·rstd·gamma, as aclnnRmsNorm of x.

    Args:
        x1, x2: As for aclnnAddRmsNorm, not empty.
        scale: What x1 is multiplied with.
        gamma, epsilon, yOut, rstdOut, xOut: As for aclnnAddRmsNorm.
    """
    return phase1(FUSED_ADD_RMS_NORM, x1, x2, gamma, epsilon, scale, yOut, rstdOut, xOut)


def aclnnAdaLayerNormGetWorkspaceSize(
    x: aclTensor,
    scale: aclTensor,
    shift: aclTensor,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    epsilon: float,
    out: aclTensor,
) -> Phase1:
    """out = y·(1 + scale) + shift, with y as aclnnLayerNorm makes it of the last dimension, not rounded before.

    Args:
        x: [B…, S, H], not empty, 2 to 8 dimensions, any strides.
        scale, shift: [B…, H] or [B…, 1, H] in x's dtype.
        weightOptional, biasOptional: [H] in x's dtype; None for 1 and 0.
        epsilon: Added to the biased variance of a row.
        out: As x. May take the place of x exactly.
    """
    return phase1(ADA_LAYER_NORM, x, scale, shift, weightOptional, biasOptional, epsilon, out)


def aclnnAdaLayerNormV2GetWorkspaceSize(
    x: aclTensor,
    scale: aclTensor,
    shift: aclTensor,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    epsilon: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
) -> Phase1:
    """As aclnnAdaLayerNormGetWorkspaceSize, and the statistics.

    Args:
        x, scale, shift, epsilon, out: As there.
        weightOptional, biasOptional: [H] in x's dtype or both in FLOAT; None for 1 and 0.
        meanOutOptional, rstdOutOptional: [B…, S, 1] in x's dtype, or None.
    """
    return phase1(
        ADA_LAYER_NORM_V2, x, scale, shift, weightOptional, biasOptional, epsilon, out, meanOutOptional, rstdOutOptional
    )


aclnnAddRmsNormCast = phase2("aclnnAddRmsNormCast")
aclnnFusedAddRmsNorm = phase2("aclnnFusedAddRmsNorm")
aclnnAdaLayerNorm = phase2("aclnnAdaLayerNorm")
aclnnAdaLayerNormV2 = phase2("aclnnAdaLayerNormV2")
