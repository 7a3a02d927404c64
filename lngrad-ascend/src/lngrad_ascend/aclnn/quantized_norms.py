"""Norms and a quantization in one operator: aclnnRmsNormQuant, aclnnAddRmsNormQuant and aclnnLayerNormQuant.

Results are in INT8 alone: the nearest integer, of the norm in float32 and what follows in float64. docs/ascend.md lists the
rules.
"""

from __future__ import annotations

import numpy as np

from lngrad.core.problem import FORWARD, RMS_FORWARD
from lngrad.typing import Array
from lngrad_ascend.acl.enums import aclDataType
from lngrad_ascend.acl.interface import invalid_argument
from lngrad_ascend.acl.tensor import aclTensor
from lngrad_ascend.aclnn import checks
from lngrad_ascend.aclnn.checks import norm_row
from lngrad_ascend.aclnn.executor import Phase1, phase1, phase2
from lngrad_ascend.aclnn.fused_norms import INSIDE, INSIDE_RMS, SIXTEEN
from lngrad_ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, Copy
from lngrad_ascend.soc import Target

BFLOAT16, INT8, INT32 = aclDataType.ACL_BF16, aclDataType.ACL_INT8, aclDataType.ACL_INT32


def quantized(values: Array) -> Array:
    """The nearest integer of 8 bits, ties to even; what is outside is the last one inside, and NaN is 0."""
    nearest: Array = np.nan_to_num(np.rint(values), copy=False)
    np.clip(nearest, -128, 127, out=nearest)
    return nearest


def _divided(y: Array, scale: Array, zero: Array) -> Array:
    return quantized(y / scale + zero)


def _shifted(y: Array, beta: Array, scale: Array, zero: Array) -> Array:
    return quantized((y + beta) / scale + zero)


# Scales and offsets of a whole tensor; parameters of the last dimension, which may have a 1 before it, or, of
# aclnnLayerNormQuant, must have one.
_ONE = checks.shape_among(lambda call: ((1,),))
_LAST_AXIS = checks.shape_among(lambda call: (call.x.shape[-1:], (1, *call.x.shape[-1:])))
_ONE_ROW = checks.shape_among(lambda call: ((1, *call.x.shape[-1:]),))


def _by_division(call: AclnnCall) -> None:
    if not call.values["divMode"]:
        raise invalid_argument(f"divMode: expected true on {call.target.soc.name}, got false")


def _static(call: AclnnCall) -> None:
    if call.values["quantMode"] != 0:
        raise invalid_argument(f"quantMode: expected 0, static quantization, got {call.values['quantMode']}")


def _quant_rows(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnRmsNormQuant's table, of INT8 results: x, gamma, beta, scale, offset, y."""
    floats = SIXTEEN if target.soc.bf16 else SIXTEEN[:1]
    rows = [(dtype, dtype, dtype, dtype, INT8, INT8) for dtype in floats]
    if target.soc.arch == checks.REGISTER_ARCH:
        rows += [(dtype,) * 5 + (INT8,) for dtype in (*floats, FLOAT)]
        rows += [(dtype, dtype, dtype, FLOAT, zero, INT8) for dtype in floats for zero in (INT32, FLOAT)]
    return tuple(rows)


RMS_NORM_QUANT = norm_row(
    "aclnnRmsNormQuant",
    reads={"x": "x", "gamma": "gamma"},
    writes=INSIDE_RMS,
    copies={"y": Copy("y", by=_shifted, of=("beta", "scale", "offset"))},
    core=(RMS_FORWARD,),
    by_tiling=False,
    last=True,
    dtype_checks=(checks.dtype_row(("x", "gamma", "beta", "scale", "offset", "y"), _quant_rows),),
    shape_checks=(
        _LAST_AXIS("gamma", "beta"),
        checks.same_shape("beta", "gamma"),
        _ONE("scale", "offset"),
        checks.same_shape("y", "x"),
        checks.strictly(checks.not_empty("x")),
        checks.least_bytes("gamma"),
    ),
)


def _add_quant_rows(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnAddRmsNormQuant's table, of INT8 results: x1, x2, gamma, xOut, two scales, two zero points, two results."""
    wide = [(dtype, FLOAT, INT32) for dtype in (SIXTEEN[:1] if target.soc.arch != checks.REGISTER_ARCH else SIXTEEN)]
    if target.soc.arch == checks.REGISTER_ARCH:
        wide += [(dtype, dtype, dtype) for dtype in FLOATS] + [(dtype, FLOAT, FLOAT) for dtype in SIXTEEN]
    elif target.soc.bf16:
        wide += [(BFLOAT16, BFLOAT16, BFLOAT16)]
    return tuple((x, x, x, x, scale, scale, zero, zero, INT8, INT8) for x, scale, zero in wide)


_SCALES = ("scales1", "scales2Optional", "zeroPoints1Optional", "zeroPoints2Optional")
ADD_RMS_NORM_QUANT = norm_row(
    "aclnnAddRmsNormQuant",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes=INSIDE_RMS,
    copies={
        "y1Out": Copy("y", by=_divided, of=("scales1", "zeroPoints1Optional")),
        "y2Out": Copy("y", by=_divided, of=("scales2Optional", "zeroPoints2Optional"), when="scales2Optional"),
        "xOut": Copy("x"),
    },
    core=(RMS_FORWARD,),
    by_tiling=False,
    dtype_checks=(checks.dtype_row(("x1", "x2", "gamma", "xOut", *_SCALES, "y1Out", "y2Out"), _add_quant_rows),),
    shape_checks=(
        *checks.NORM_CHECKS,
        *(checks.same_shape(name, "x1") for name in ("x2", "xOut", "y1Out")),
        checks.same_shape("y2Out", "y1Out"),
        *(checks.same_shape(name, "gamma") for name in _SCALES),
        _by_division,
        checks.least_bytes("gamma"),
    ),
)


def _layer_norm_quant_rows(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnLayerNormQuant's table: x, gamma, beta, scale, zero point, result."""
    floats = FLOATS if target.soc.arch == checks.REGISTER_ARCH else SIXTEEN if target.soc.bf16 else SIXTEEN[:1]
    return tuple((dtype, dtype, dtype, dtype, INT8, INT8) for dtype in floats)


LAYER_NORM_QUANT = norm_row(
    "aclnnLayerNormQuant",
    reads={"x": "x", "gamma": "gamma", "beta": "beta"},
    writes=INSIDE,
    copies={"res": Copy("y", by=_divided, of=("scale", "zeroPointsOptional"))},
    core=(FORWARD,),
    last=True,
    optional=lambda name: False,
    by_tiling=False,
    dtype_checks=(
        checks.dtype_row(("x", "gamma", "beta", "scale", "zeroPointsOptional", "res"), _layer_norm_quant_rows),
    ),
    shape_checks=(
        _static,
        _ONE_ROW("gamma", "beta"),
        _ONE("scale", "zeroPointsOptional"),
        checks.same_shape("res", "x"),
        checks.least_bytes("x"),
    ),
)


def aclnnRmsNormQuantGetWorkspaceSize(
    x: aclTensor, gamma: aclTensor, beta: aclTensor, scale: aclTensor, offset: aclTensor, epsilon: float, y: aclTensor
) -> Phase1:
    """y = round((x·rstd·gamma + beta)/scale + offset) of the last dimension: the nearest integer from -128 to 127, ties to
    even; 0 for NaN.

    Args:
        x: [A1, …, Ai, R], not empty, 1 to 8 dimensions, any strides.
        gamma, beta: [R] or [1, R], the same shape, in x's dtype.
        scale, offset: [1]; scale in x's dtype, offset in INT8; on Ascend 950 other rows of the page's table too.
        epsilon: Added to the mean of the squares.
        y: As x, in INT8. CANN: also INT4, INT32 and, on Ascend 950, floating-point numbers of 8 bits.
    """
    return phase1(RMS_NORM_QUANT, x, gamma, beta, scale, offset, epsilon, y)


def aclnnAddRmsNormQuantGetWorkspaceSize(
    x1: aclTensor,
    x2: aclTensor,
    gamma: aclTensor,
    scales1: aclTensor,
    scales2Optional: aclTensor | None,
    zeroPoints1Optional: aclTensor | None,
    zeroPoints2Optional: aclTensor | None,
    axis: int,
    epsilon: float,
    divMode: bool,
    y1Out: aclTensor,
    y2Out: aclTensor,
    xOut: aclTensor,
) -> Phase1:
    """With x = x1 + x2 in float32 and y = x·rstd·gamma: y1Out = round(y/scales1 + zeroPoints1Optional), and y2Out with the
    second ones; rounded as by aclnnRmsNormQuant.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides; FLOAT on Ascend 950 alone.
        gamma, epsilon, xOut: As for aclnnAddRmsNorm.
        scales1, scales2Optional, zeroPoints1Optional, zeroPoints2Optional: As gamma, in the dtypes of a row of the page's
            table; without zero points 0, without the second scales y2Out is not written.
        axis: Has no effect, as the page says.
        divMode: Must be true, as on Atlas A2.
        y1Out, y2Out: As x1, in INT8.
    """
    scales = (scales1, scales2Optional, zeroPoints1Optional, zeroPoints2Optional)
    return phase1(ADD_RMS_NORM_QUANT, x1, x2, gamma, *scales, axis, epsilon, divMode, y1Out, y2Out, xOut)


def aclnnLayerNormQuantGetWorkspaceSize(
    x: aclTensor,
    gamma: aclTensor,
    beta: aclTensor,
    scale: aclTensor,
    zeroPointsOptional: aclTensor,
    quantMode: int,
    epsilon: float,
    res: aclTensor,
    scaleOut: aclTensor | None,
) -> Phase1:
    """res = round(y/scale + zeroPointsOptional), with y as aclnnLayerNorm makes it of the last dimension; rounded as by
    aclnnRmsNormQuant.

    Args:
        x: [A1, …, Ai, R], 1 to 8 dimensions, any strides; FLOAT on Ascend 950 alone.
        gamma, beta: [1, R] in x's dtype.
        scale, zeroPointsOptional: [1]; scale in x's dtype, the zero point in INT8. The published code takes no null pointer.
        quantMode: 0, static quantization, as the page says.
        epsilon: Added to the biased variance of a row.
        res: As x, in INT8.
        scaleOut: Not written.
    """
    return phase1(LAYER_NORM_QUANT, x, gamma, beta, scale, zeroPointsOptional, quantMode, epsilon, res, scaleOut)


aclnnRmsNormQuant = phase2("aclnnRmsNormQuant")
aclnnAddRmsNormQuant = phase2("aclnnAddRmsNormQuant")
aclnnLayerNormQuant = phase2("aclnnLayerNormQuant")
