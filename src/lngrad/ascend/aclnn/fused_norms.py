"""Norms with what follows them in one operator: aclnnAddRmsNormCast and aclnnFusedAddRmsNorm, aclnnAdaLayerNorm and its V2,
aclnnRmsNormQuant, aclnnAddRmsNormQuant and aclnnLayerNormQuant; and aclnnLayerNormalizationGrad of the experimental room.

The core's norm is kept in float32, and what follows is done in float64 and rounded once. A sum is not rounded before it is
normalized. The rules are those of the pages (ops-nn, norm/*/docs) and of the published first phases, in the order of the
latter: null pointers, dtypes, shapes. Quantized results are in INT8 alone. docs/ascend.md lists the rules with their tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.interface import invalid_argument
from lngrad.ascend.acl.tensor import TensorFacts, aclTensor
from lngrad.ascend.aclnn.checks import (
    INFERENCE_ARCH,
    MOST_DIMS,
    TRAINING_ARCH,
    Check,
    Wrong,
    contiguous,
    dtype_row,
    dtypes_of_product,
    float32,
    in_strict,
    known_dtype,
    least_bytes,
    normalized_rank,
    normalized_shape,
    not_empty,
    of_tensors,
    on_inference,
    one_per_row,
    own_places,
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
from lngrad.ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator, AclnnOutput, Copy, Specs
from lngrad.ascend.soc import Target
from lngrad.core.problem import (
    BACKWARD,
    FORWARD,
    RMS_FORWARD,
    RMS_NORM,
    Forward,
    Grads,
    Problem,
    RmsForward,
    describe,
)
from lngrad.typing import Array

FLOAT16, BFLOAT16, INT8, INT32 = (aclDataType[f"ACL_{name}"] for name in ("FLOAT16", "BF16", "INT8", "INT32"))
SIXTEEN = FLOATS[1:]
BASE_ARCH, REGISTER_ARCH = 2201, 3510  # Atlas A2 and A3; Ascend 950

Table = Callable[[Target], tuple[tuple[aclDataType, ...], ...]]


def quantized(values: Array) -> Array:
    """The nearest integer of 8 bits, ties to even; what is outside is the last one inside, and NaN is 0."""
    nearest: Array = np.nan_to_num(np.rint(values), copy=False)
    np.clip(nearest, -128, 127, out=nearest)
    return nearest


def _divided(y: Array, scale: Array, zero: Array) -> Array:
    return quantized(y / scale + zero)


def _shifted(y: Array, beta: Array, scale: Array, zero: Array) -> Array:
    return quantized((y + beta) / scale + zero)


def _modulated(y: Array, scale: Array, shift: Array) -> Array:
    made: Array = y * (1 + scale) + shift
    return made


def _rms(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    made = RmsForward(*outputs)
    return describe(RMS_FORWARD, inputs, call.norm, RMS_FORWARD.everything, made, RMS_NORM)[0]


def _layer(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(FORWARD, inputs, call.norm, FORWARD.everything, Forward(*outputs))[0]


def _gradient(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(BACKWARD, inputs, call.norm, BACKWARD.everything, Grads(*outputs))[0]


@of_tensors
def _one(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Scales and offsets of a whole tensor."""
    return facts.shape != (1,) and f"the shape (1,), got {facts.shape}"


@of_tensors
def _last_axis(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Parameters of the last dimension, which may have a 1 before it."""
    size = call.x.shape[-1:]
    return facts.shape not in (size, (1, *size)) and f"the shape {size} or {(1, *size)}, got {facts.shape}"


@of_tensors
def _one_row(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Parameters of aclnnLayerNormQuant have a 1 before the last dimension."""
    size = call.x.shape[-1:]
    return facts.shape != (1, *size) and f"the shape {(1, *size)}, got {facts.shape}"


@of_tensors
def _per_batch(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Scale and shift have one row for each batch."""
    *batch, _, size = call.x.shape
    allowed = (*batch, size), (*batch, 1, size)
    return facts.shape not in allowed and f"the shape {allowed[0]} or {allowed[1]}, got {facts.shape}"


@of_tensors
def _weight_shape(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    return facts.shape != call.x.shape[-1:] and f"the shape {call.x.shape[-1:]}, got {facts.shape}"


@of_tensors
def _dims(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    count = len(facts.shape)
    return not 1 <= count <= MOST_DIMS and f"1 to {MOST_DIMS} dimensions, got {count}: {facts.shape}"


def _two_dims(call: AclnnCall) -> None:
    if not 2 <= len(call.x.shape) <= MOST_DIMS:
        raise invalid_argument(f"x: expected 2 to {MOST_DIMS} dimensions, got {len(call.x.shape)}: {call.x.shape}")


def _by_division(call: AclnnCall) -> None:
    if not call.values["divMode"]:
        raise invalid_argument(f"divMode: expected true on {call.target.soc.name}, got false")


def _static(call: AclnnCall) -> None:
    if call.values["quantMode"] != 0:
        raise invalid_argument(f"quantMode: expected 0, static quantization, got {call.values['quantMode']}")


def _row(
    name: str,
    reads: dict[str, str],
    writes: dict[str, AclnnOutput],
    copies: dict[str, Copy],
    problem: Callable[[AclnnCall, Specs, Specs], Problem],
    shapes: tuple[Check, ...],
    dtypes: tuple[Check, ...],
    terms: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    missing: tuple[int, ...] = (TRAINING_ARCH,),
    normalized: str = "gamma",
    last: bool = True,
    alpha: str = "",
    x: str = "x",
    numbers: tuple[str, ...] = ("epsilon",),
    known: Callable[[Target], tuple[aclDataType, ...]] = dtypes_of_product,
    codes: Callable[..., Check] = together,
) -> AclnnOperator:
    """The row of a function: what all have in common of its checks.

    Args:
        shapes, dtypes: Its checks of them.
        optional: Tensors that may be null; all others are required.
        missing: The architectures whose products its page does not list.
        codes: Whose checks those of shapes are: the first phase's own, or the tiling's.
    """
    others = tuple(dict.fromkeys(one for copy in copies.values() for one in copy.of))
    outputs = (*(one for one in writes if not one.startswith("(")), *copies)
    tensors = tuple(dict.fromkeys((*reads, *terms, *others, *outputs)))
    return AclnnOperator(
        name,
        reads=reads,
        writes=writes,
        terms=terms,
        copies=copies,
        alpha=alpha,
        numbers=numbers,
        x=x,
        normalized=normalized,
        last=last,
        dtypes=known,
        problem=problem,
        checks=(
            when(in_strict, product_without(lambda target: target.soc.arch in missing)),
            required(*(one for one in tensors if one not in optional)),
            usable,
            *dtypes,
            codes(_dims(*tensors), *shapes),
            own_places(*outputs),
        ),
    )


_NORM = (normalized_rank, normalized_shape)
_RSTD = AclnnOutput("out.rstd", like="rows", fill=math.nan)
# Results of the core that a prototype lacks lie in the workspace alone.
_INSIDE = {"(y)": AclnnOutput("out.y", like="x", always=True)}
_NO_RSTD = {"(rstd)": AclnnOutput("out.rstd", like="rows", always=True)}
_NO_TOTAL = {"(total)": AclnnOutput("out.total", like="x")}
_NO_STATISTICS = {"(mean)": AclnnOutput("out.mean", like="rows", always=True)} | _NO_RSTD
_SUM_DTYPES = ("x1", "x2", "gamma", "xOut")


def _all_as(*names: str) -> tuple[Check, ...]:
    return (known_dtype(*names), *(same_dtype(one, names[0]) for one in names[1:]))


ADD_RMS_NORM_CAST = _row(
    "aclnnAddRmsNormCast",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes={"y1Out": AclnnOutput("out.y", like="x"), "rstdOut": _RSTD, **_NO_TOTAL},
    copies={"y2Out": Copy("out.y"), "xOut": Copy("x")},
    problem=_rms,
    x="x1",
    last=False,
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    known=lambda target: SIXTEEN if target.soc.bf16 else SIXTEEN[:1],
    dtypes=(*_all_as("x1", "x2", "gamma", "y2Out", "xOut"), float32("y1Out", "rstdOut")),
    codes=tiling,
    shapes=(
        *_NORM,
        *(same_shape(one, "x1") for one in ("x2", "y1Out", "y2Out", "xOut")),
        rows_shape("rstdOut"),
        when(in_strict, contiguous("y1Out", "y2Out", "rstdOut", "xOut")),
    ),
)
FUSED_ADD_RMS_NORM = _row(
    "aclnnFusedAddRmsNorm",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    alpha="scale",
    writes={"yOut": AclnnOutput("out.y", like="x"), "rstdOut": _RSTD, **_NO_TOTAL},
    copies={"xOut": Copy("x")},
    problem=_rms,
    x="x1",
    last=False,
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    dtypes=(*_all_as("x1", "x2", "gamma", "yOut", "xOut"), float32("rstdOut")),
    shapes=(
        *_NORM,
        *(same_shape(one, "x1") for one in ("x2", "yOut", "xOut")),
        rows_shape("rstdOut"),
        when(in_strict, not_empty("x1", "gamma")),
    ),
)


def _ada(
    name: str, missing: tuple[int, ...], parameters: tuple[Check, ...], statistics: tuple[str, ...]
) -> AclnnOperator:
    given = dict(zip(statistics, _NO_STATISTICS.values(), strict=False))
    return _row(
        name,
        reads={"x": "x", "weightOptional": "gamma", "biasOptional": "beta"},
        writes=_INSIDE | (given or _NO_STATISTICS),
        copies={"out": Copy("out.y", by=_modulated, of=("scale", "shift"))},
        problem=_layer,
        normalized="scale",
        optional=("weightOptional", "biasOptional", *statistics),
        missing=missing,
        dtypes=(*_all_as("x", "scale", "shift", "out", *statistics), *parameters),
        shapes=(
            _two_dims,
            when(in_strict, not_empty("x")),
            _per_batch("scale", "shift"),
            _weight_shape("weightOptional", "biasOptional"),
            same_shape("out", "x"),
            rows_shape(*statistics),
        ),
    )


@of_tensors
def _wide_parameter(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    allowed = (FLOAT, call.x.dtype)
    return facts.dtype not in allowed and f"ACL_FLOAT or the dtype of x, {call.x.dtype.name}, got {facts.dtype.name}"


_PARAMETERS = ("weightOptional", "biasOptional")
ADA_LAYER_NORM = _ada(
    "aclnnAdaLayerNorm",
    (TRAINING_ARCH, INFERENCE_ARCH, REGISTER_ARCH),
    tuple(same_dtype(one, "x") for one in _PARAMETERS),
    (),
)
ADA_LAYER_NORM_V2 = _ada(
    "aclnnAdaLayerNormV2",
    (TRAINING_ARCH, INFERENCE_ARCH),
    (_wide_parameter(*_PARAMETERS), same_dtype(*_PARAMETERS)),
    ("meanOutOptional", "rstdOutOptional"),
)


def _quant_rows(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnRmsNormQuant's table, of INT8 results: x, gamma, beta, scale, offset, y."""
    floats = SIXTEEN if target.soc.bf16 else SIXTEEN[:1]
    rows = [(dtype, dtype, dtype, dtype, INT8, INT8) for dtype in floats]
    if target.soc.arch == REGISTER_ARCH:
        rows += [(dtype,) * 5 + (INT8,) for dtype in (*floats, FLOAT)]
        rows += [(dtype, dtype, dtype, FLOAT, zero, INT8) for dtype in floats for zero in (INT32, FLOAT)]
    return tuple(rows)


RMS_NORM_QUANT = _row(
    "aclnnRmsNormQuant",
    reads={"x": "x", "gamma": "gamma"},
    writes=_INSIDE | _NO_RSTD | _NO_TOTAL,
    copies={"y": Copy("out.y", by=_shifted, of=("beta", "scale", "offset"))},
    problem=_rms,
    dtypes=(dtype_row(("x", "gamma", "beta", "scale", "offset", "y"), _quant_rows),),
    shapes=(
        _last_axis("gamma", "beta"),
        same_shape("beta", "gamma"),
        _one("scale", "offset"),
        same_shape("y", "x"),
        when(in_strict, not_empty("x")),
        when(on_inference, least_bytes("gamma")),
    ),
)


def _add_quant_rows(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnAddRmsNormQuant's table, of INT8 results: x1, x2, gamma, xOut, two scales, two zero points, two results."""
    wide = [(dtype, FLOAT, INT32) for dtype in (SIXTEEN[:1] if target.soc.arch != REGISTER_ARCH else SIXTEEN)]
    if target.soc.arch == REGISTER_ARCH:
        wide += [(dtype, dtype, dtype) for dtype in FLOATS] + [(dtype, FLOAT, FLOAT) for dtype in SIXTEEN]
    elif target.soc.bf16:
        wide += [(BFLOAT16, BFLOAT16, BFLOAT16)]
    return tuple((x, x, x, x, scale, scale, zero, zero, INT8, INT8) for x, scale, zero in wide)


_SCALES = ("scales1", "scales2Optional", "zeroPoints1Optional", "zeroPoints2Optional")
ADD_RMS_NORM_QUANT = _row(
    "aclnnAddRmsNormQuant",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes=_INSIDE | _NO_RSTD | _NO_TOTAL,
    copies={
        "y1Out": Copy("out.y", by=_divided, of=("scales1", "zeroPoints1Optional")),
        "y2Out": Copy("out.y", by=_divided, of=("scales2Optional", "zeroPoints2Optional"), when="scales2Optional"),
        "xOut": Copy("x"),
    },
    problem=_rms,
    x="x1",
    last=False,
    optional=_SCALES[1:],
    dtypes=(dtype_row((*_SUM_DTYPES, *_SCALES, "y1Out", "y2Out"), _add_quant_rows),),
    shapes=(
        *_NORM,
        *(same_shape(one, "x1") for one in ("x2", "xOut", "y1Out")),
        same_shape("y2Out", "y1Out"),
        *(same_shape(one, "gamma") for one in _SCALES),
        _by_division,
        when(on_inference, least_bytes("gamma")),
    ),
)
LAYER_NORM_QUANT = _row(
    "aclnnLayerNormQuant",
    reads={"x": "x", "gamma": "gamma", "beta": "beta"},
    writes=_INSIDE | _NO_STATISTICS,
    copies={"res": Copy("out.y", by=_divided, of=("scale", "zeroPointsOptional"))},
    problem=_layer,
    dtypes=(
        dtype_row(
            ("x", "gamma", "beta", "scale", "zeroPointsOptional", "res"),
            lambda target: tuple(
                (dtype, dtype, dtype, dtype, INT8, INT8)
                for dtype in (
                    FLOATS if target.soc.arch == REGISTER_ARCH else SIXTEEN if target.soc.bf16 else SIXTEEN[:1]
                )
            ),
        ),
    ),
    shapes=(
        _static,
        _one_row("gamma", "beta"),
        _one("scale", "zeroPointsOptional"),
        same_shape("res", "x"),
        when(on_inference, least_bytes("x")),
    ),
)
LAYER_NORMALIZATION_GRAD = _row(
    "aclnnLayerNormalizationGrad",
    reads={"dy": "dy", "x": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma"},
    writes={
        "dx": AclnnOutput("out.dx", like="x"),
        "dgamma": AclnnOutput("out.dgamma", like="columns"),
        "dbeta": AclnnOutput("out.dbeta", like="columns"),
    },
    copies={},
    problem=_gradient,
    last=False,
    numbers=(),
    missing=(TRAINING_ARCH, INFERENCE_ARCH, REGISTER_ARCH),
    dtypes=_all_as("x", "dy", "gamma", "mean", "rstd", "dx", "dgamma", "dbeta"),
    shapes=(
        *_NORM,
        *(same_shape(one, "x") for one in ("dy", "dx")),
        *(same_shape(one, "gamma") for one in ("dgamma", "dbeta")),
        one_per_row("mean", "rstd"),
    ),
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With x = x1 + x2 in float32: y1Out = x·rstd·gamma, y2Out = y1Out in x1's dtype, xOut = x in it. CANN: kernels round
    y1Out to 16 bits too.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj] in FLOAT16 or BFLOAT16, 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x1's dtype.
        epsilon: Added to the mean of the squares.
        y1Out: As x1, in FLOAT, contiguous.
        y2Out, xOut: As x1, contiguous.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With x = scale·x1 + x2 in float32: yOut = x·rstd·gamma, as aclnnRmsNorm of x.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], the same dtype, not empty, 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x1's dtype.
        epsilon: Added to the mean of the squares.
        scale: What x1 is multiplied with.
        yOut, xOut: As x1. Each may take the place of x1 or x2 exactly.
        rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    out = y·(1 + scale) + shift, with y as aclnnLayerNorm makes it of the last dimension, not rounded before.

    Args:
        x: [B…, S, H], not empty, 2 to 8 dimensions, any strides.
        scale, shift: [B…, H] or [B…, 1, H] in x's dtype.
        weightOptional, biasOptional: [H] in x's dtype; None for 1 and 0.
        epsilon: Added to the biased variance of a row.
        out: As x. May take the place of x exactly.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    As aclnnAdaLayerNormGetWorkspaceSize, and the statistics.

    Args:
        x, scale, shift, epsilon, out: As there.
        weightOptional, biasOptional: [H] in x's dtype or both in FLOAT; None for 1 and 0.
        meanOutOptional, rstdOutOptional: [B…, S, 1] in x's dtype, or None.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(
        ADA_LAYER_NORM_V2, x, scale, shift, weightOptional, biasOptional, epsilon, out, meanOutOptional, rstdOutOptional
    )


def aclnnRmsNormQuantGetWorkspaceSize(
    x: aclTensor,
    gamma: aclTensor,
    beta: aclTensor,
    scale: aclTensor,
    offset: aclTensor,
    epsilon: float,
    y: aclTensor,
) -> Phase1:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    y = round((x·rstd·gamma + beta)/scale + offset) of the last dimension: the nearest integer from -128 to 127, ties to
    even; 0 for NaN.

    Args:
        x: [A1, …, Ai, R], not empty, 1 to 8 dimensions, any strides.
        gamma, beta: [R] or [1, R], the same shape, in x's dtype.
        scale, offset: [1]; scale in x's dtype, offset in INT8; on Ascend 950 other rows of the page's table too.
        epsilon: Added to the mean of the squares.
        y: As x, in INT8. CANN: also INT4, INT32 and, on Ascend 950, floating-point numbers of 8 bits.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With x = x1 + x2 in float32 and y = x·rstd·gamma: y1Out = round(y/scales1 + zeroPoints1Optional), and y2Out with the
    second ones; rounded as by aclnnRmsNormQuant.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides; FLOAT on Ascend 950 alone.
        gamma: [R1, …, Rj] in x1's dtype.
        scales1, scales2Optional, zeroPoints1Optional, zeroPoints2Optional: As gamma, in the dtypes of a row of the page's
            table; without zero points 0, without the second scales y2Out is not written.
        axis: Has no effect, as the page says.
        epsilon: Added to the mean of the squares.
        divMode: Must be true, as on Atlas A2.
        y1Out, y2Out: As x1, in INT8.
        xOut: As x1. May take the place of x1 or x2 exactly.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    res = round(y/scale + zeroPointsOptional), with y as aclnnLayerNorm makes it of the last dimension; rounded as by
    aclnnRmsNormQuant.

    Args:
        x: [A1, …, Ai, R], 1 to 8 dimensions, any strides; FLOAT on Ascend 950 alone.
        gamma, beta: [1, R] in x's dtype.
        scale, zeroPointsOptional: [1]; scale in x's dtype, the zero point in INT8. The published code takes no null pointer.
        quantMode: 0, static quantization, as the page says.
        epsilon: Added to the biased variance of a row.
        res: As x, in INT8.
        scaleOut: Not written.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(LAYER_NORM_QUANT, x, gamma, beta, scale, zeroPointsOptional, quantMode, epsilon, res, scaleOut)


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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    The gradients of aclnnLayerNormBackward, of the experimental room's operator.

    Args:
        dy, x: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides.
        gamma: [R1, …, Rj].
        mean, rstd: One element per row, used as they are.
        dx: As x. May take the place of dy or x exactly.
        dgamma, dbeta: As gamma. All are in one dtype.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(LAYER_NORMALIZATION_GRAD, dy, x, gamma, mean, rstd, dx, dgamma, dbeta)


aclnnAddRmsNormCast = phase2("aclnnAddRmsNormCast")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnFusedAddRmsNorm = phase2("aclnnFusedAddRmsNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnAdaLayerNorm = phase2("aclnnAdaLayerNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnAdaLayerNormV2 = phase2("aclnnAdaLayerNormV2")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnRmsNormQuant = phase2("aclnnRmsNormQuant")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnAddRmsNormQuant = phase2("aclnnAddRmsNormQuant")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnLayerNormQuant = phase2("aclnnLayerNormQuant")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnLayerNormalizationGrad = phase2("aclnnLayerNormalizationGrad")
"""Run an executor on a stream; as aclnnLayerNormBackward."""
