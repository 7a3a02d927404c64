"""Norms with what follows them in one operator: aclnnAddRmsNormCast and aclnnFusedAddRmsNorm, aclnnAdaLayerNorm and its V2;
and aclnnLayerNormalizationGrad of the experimental room. quantized_norms has those that end in INT8.

The core's norm is kept in float32, and what follows is done in float64 and rounded once. A sum is not rounded before it is
normalized. The rules are those of the pages (ops-nn, norm/*/docs) and of the published first phases, in the order of the
latter: null pointers, dtypes, shapes. docs/ascend.md lists the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
    dtypes_of_product,
    float32,
    in_strict,
    known_dtype,
    normalized_rank,
    normalized_shape,
    not_empty,
    of_tensors,
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
from lngrad.ascend.aclnn.operator import FLOATS, AclnnCall, AclnnOperator, AclnnOutput, Copy, Specs
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

SIXTEEN = FLOATS[1:]
REGISTER_ARCH = 3510  # Ascend 950


def _modulated(y: Array, scale: Array, shift: Array) -> Array:
    made: Array = y * (1 + scale) + shift
    return made


def rms_problem(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    made = RmsForward(*outputs)
    return describe(RMS_FORWARD, inputs, call.norm, RMS_FORWARD.everything, made, RMS_NORM)[0]


def layer_problem(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(FORWARD, inputs, call.norm, FORWARD.everything, Forward(*outputs))[0]


def _gradient(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(BACKWARD, inputs, call.norm, BACKWARD.everything, Grads(*outputs))[0]


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


def fused_row(
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


NORM_CHECKS = (normalized_rank, normalized_shape)
_RSTD = AclnnOutput("out.rstd", like="rows", fill=math.nan)
# Results of the core that a prototype lacks lie in the workspace alone.
INSIDE = {"(y)": AclnnOutput("out.y", like="x", always=True)}
NO_RSTD = {"(rstd)": AclnnOutput("out.rstd", like="rows", always=True)}
NO_TOTAL = {"(total)": AclnnOutput("out.total", like="x")}
NO_STATISTICS = {"(mean)": AclnnOutput("out.mean", like="rows", always=True)} | NO_RSTD


def _all_as(*names: str) -> tuple[Check, ...]:
    return (known_dtype(*names), *(same_dtype(one, names[0]) for one in names[1:]))


ADD_RMS_NORM_CAST = fused_row(
    "aclnnAddRmsNormCast",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    writes={"y1Out": AclnnOutput("out.y", like="x"), "rstdOut": _RSTD, **NO_TOTAL},
    copies={"y2Out": Copy("out.y"), "xOut": Copy("x")},
    problem=rms_problem,
    x="x1",
    last=False,
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    known=lambda target: SIXTEEN if target.soc.bf16 else SIXTEEN[:1],
    dtypes=(*_all_as("x1", "x2", "gamma", "y2Out", "xOut"), float32("y1Out", "rstdOut")),
    codes=tiling,
    shapes=(
        *NORM_CHECKS,
        *(same_shape(one, "x1") for one in ("x2", "y1Out", "y2Out", "xOut")),
        rows_shape("rstdOut"),
        when(in_strict, contiguous("y1Out", "y2Out", "rstdOut", "xOut")),
    ),
)
FUSED_ADD_RMS_NORM = fused_row(
    "aclnnFusedAddRmsNorm",
    reads={"x1": "x", "gamma": "gamma"},
    terms=("x2",),
    alpha="scale",
    writes={"yOut": AclnnOutput("out.y", like="x"), "rstdOut": _RSTD, **NO_TOTAL},
    copies={"xOut": Copy("x")},
    problem=rms_problem,
    x="x1",
    last=False,
    missing=(TRAINING_ARCH, INFERENCE_ARCH),
    dtypes=(*_all_as("x1", "x2", "gamma", "yOut", "xOut"), float32("rstdOut")),
    shapes=(
        *NORM_CHECKS,
        *(same_shape(one, "x1") for one in ("x2", "yOut", "xOut")),
        rows_shape("rstdOut"),
        when(in_strict, not_empty("x1", "gamma")),
    ),
)


def _ada(
    name: str, missing: tuple[int, ...], parameters: tuple[Check, ...], statistics: tuple[str, ...]
) -> AclnnOperator:
    given = dict(zip(statistics, NO_STATISTICS.values(), strict=False))
    return fused_row(
        name,
        reads={"x": "x", "weightOptional": "gamma", "biasOptional": "beta"},
        writes=INSIDE | (given or NO_STATISTICS),
        copies={"out": Copy("out.y", by=_modulated, of=("scale", "shift"))},
        problem=layer_problem,
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
    (parameter_dtype(*_PARAMETERS), same_dtype(*_PARAMETERS)),
    ("meanOutOptional", "rstdOutOptional"),
)


LAYER_NORMALIZATION_GRAD = fused_row(
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
        *NORM_CHECKS,
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
    """
    return phase1(
        ADA_LAYER_NORM_V2, x, scale, shift, weightOptional, biasOptional, epsilon, out, meanOutOptional, rstdOutOptional
    )


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

aclnnLayerNormalizationGrad = phase2("aclnnLayerNormalizationGrad")
"""Run an executor on a stream; as aclnnLayerNormBackward."""
