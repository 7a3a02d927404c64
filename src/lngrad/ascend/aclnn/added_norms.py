"""aclnnAddLayerNorm, aclnnDeepNorm and their gradients: layer normalization of a sum. Checks, rows, and the two phases.

The sum is made in float32 and not rounded before it is normalized, as the published kernels have it; each result is
rounded once. The rules are those of the pages (ops-nn, norm/*/docs) and of the published tiling, in the order of the
latter: the first phase looks at null pointers and dtypes, the tiling at shapes. gamma's shape is the normalized shape.
docs/ascend.md lists the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.interface import invalid_argument
from lngrad.ascend.acl.tensor import aclTensor
from lngrad.ascend.aclnn.checks import (
    TRAINING_ARCH,
    Check,
    contiguous,
    dtype_row,
    dtypes_of_product,
    float32,
    in_compat,
    in_strict,
    known_dtype,
    least_bytes,
    most_dims,
    normalized_rank,
    normalized_shape,
    not_empty,
    on_inference,
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
from lngrad.core.problem import ADD_BACKWARD, BACKWARD, FORWARD, Forward, Grads, Problem, describe


def _sums(target: Target) -> tuple[tuple[aclDataType, ...], ...]:
    """aclnnAddLayerNorm's table: x1, x2, gamma, beta, biasOptional, yOut, xOut. The page has none for Ascend 950."""
    equal = tuple((dtype,) * 7 for dtype in dtypes_of_product(target))
    if not target.soc.bf16:
        return equal
    mixed = tuple(row for dtype in FLOATS[1:] for row in ((FLOAT, dtype), (dtype, FLOAT)))
    of_floats = tuple((dtype, dtype, FLOAT, FLOAT, dtype, dtype, dtype) for dtype in FLOATS[1:])
    return (*((*row, *(FLOAT,) * 5) for row in mixed), *of_floats, *equal)


def _bias_shape(call: AclnnCall) -> None:
    for name, facts in call.given("biasOptional"):
        if facts.shape not in (call.norm, call.x.shape):
            raise invalid_argument(
                f"{name}: expected the shape of gamma, {call.norm}, or of x1, {call.x.shape}, got {facts.shape}"
            )


def _a_leading_dimension(call: AclnnCall) -> None:
    if not call.lead:
        raise invalid_argument(f"gamma: expected fewer dimensions than x has, got {call.norm} for {call.x.shape}")


def _forward(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    return describe(FORWARD, inputs, call.norm, FORWARD.everything, Forward(*outputs))[0]


def _gradient(call: AclnnCall, inputs: Specs, outputs: Specs) -> Problem:
    operator = BACKWARD if len(inputs) == len(BACKWARD.inputs) else ADD_BACKWARD
    return describe(operator, inputs, call.norm, operator.everything, Grads(*outputs))[0]


def _row(
    name: str,
    reads: dict[str, str],
    terms: tuple[str, ...],
    writes: dict[str, AclnnOutput],
    copies: dict[str, Copy],
    problem: Callable[[AclnnCall, Specs, Specs], Problem],
    dtypes: Check | None = None,
    shapes: Callable[..., Check] = tiling,
    contiguous_outputs: bool = True,
    own: tuple[Check, ...] = (),
    numbers: tuple[str, ...] = (),
    alpha: str = "",
) -> AclnnOperator:
    """The row of a function; what a tensor is follows from the core's name for it.

    Args:
        dtypes: What holds for the dtypes of x, what is like it, and parameters; by default all have x's.
        shapes: Whose checks those of shapes are: the tiling's, or the first phase's own.
        contiguous_outputs: Whether its page takes contiguous outputs alone.
        own: Checks of shapes that it alone has.
    """
    kinds = dict.fromkeys((*terms, *copies), "x") | reads | {one: output.core_name for one, output in writes.items()}
    x = next(one for one, kind in reads.items() if kind == "x")
    rows = [one for one, kind in kinds.items() if kind.removeprefix("out.") in ("mean", "rstd")]
    columns = [one for one, kind in kinds.items() if kind in ("beta", "out.dgamma", "out.dbeta")]
    sums = [one for one in columns if one in writes]
    like_x = [one for one in kinds if one not in (x, "gamma", "biasOptional", *rows, *columns)]
    whole = [one for one in kinds if not one.endswith("Optional")]
    outputs = (*writes, *copies)
    equal = [same_dtype(one, x) for one in kinds if one not in (x, *rows, *sums)]
    return AclnnOperator(
        name,
        reads=reads,
        writes=writes,
        terms=terms,
        alpha=alpha,
        copies=copies,
        numbers=numbers,
        x=x,
        normalized="gamma",
        dtypes=dtypes_of_product,
        problem=problem,
        checks=(
            when(in_strict, product_without(lambda target: target.soc.arch == TRAINING_ARCH)),
            required(*whole),
            usable,
            known_dtype(*(one for one in kinds if one not in (*rows, *sums))),
            *([dtypes] if dtypes else equal),
            float32(*rows, *sums),
            shapes(
                most_dims(*kinds),
                normalized_rank,
                normalized_shape,
                *(same_shape(one, x) for one in like_x),
                *(same_shape(one, "gamma") for one in columns),
                rows_shape(*rows),
                *own,
            ),
            *([when(in_strict, contiguous(*outputs))] if contiguous_outputs else []),
            own_places(*outputs),
        ),
    )


_STATISTICS = {
    "meanOut": AclnnOutput("out.mean", like="rows"),
    "rstdOut": AclnnOutput("out.rstd", like="rows", fill=math.nan),
}
_SUMS = {"dgammaOut": AclnnOutput("out.dgamma", like="columns"), "dbetaOut": AclnnOutput("out.dbeta", like="columns")}
_DX = AclnnOutput("out.dx", like="x")

ADD_LAYER_NORM = _row(
    "aclnnAddLayerNorm",
    reads={"x1": "x", "gamma": "gamma", "beta": "beta"},
    terms=("x2", "biasOptional"),
    writes={"yOut": AclnnOutput("out.y", like="x"), **_STATISTICS},
    copies={"xOut": Copy("x", when="additionalOutput")},
    numbers=("epsilon",),
    problem=_forward,
    dtypes=dtype_row(("x1", "x2", "gamma", "beta", "biasOptional", "yOut", "xOut"), _sums),
    own=(
        _bias_shape,
        not_empty("x1", "gamma", "meanOut"),
        when(on_inference, least_bytes("x1", "x2", "beta", "gamma", "biasOptional")),
    ),
)
ADD_LAYER_NORM_GRAD = _row(
    "aclnnAddLayerNormGrad",
    reads={"dy": "dy", "x1": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma", "dsumOptional": "dtotal"},
    terms=("x2",),
    writes={"dxOut": _DX, **_SUMS},
    copies={},
    problem=_gradient,
    contiguous_outputs=False,
    own=(not_empty("dy", "gamma"),),
)
# The page takes empty tensors, the published tiling does not.
_OWN = (_a_leading_dimension, when(in_compat, tiling(not_empty("x"))))
DEEP_NORM = _row(
    "aclnnDeepNorm",
    reads={"x": "x", "gamma": "gamma", "beta": "beta"},
    terms=("gx",),
    writes={"yOut": AclnnOutput("out.y", like="x"), **_STATISTICS},
    copies={},
    numbers=("epsilon",),
    alpha="alpha",
    problem=_forward,
    shapes=together,
    own=_OWN,
)
DEEP_NORM_GRAD = _row(
    "aclnnDeepNormGrad",
    reads={"dy": "dy", "x": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma"},
    terms=("gx",),
    writes={"dgxOut": _DX, **_SUMS},
    copies={"dxOut": Copy("out.dx", factor="alpha")},
    alpha="alpha",
    problem=_gradient,
    shapes=together,
    own=_OWN,
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With x = x1 + x2 + biasOptional in float32: yOut = (x - mean)·rstd·gamma + beta, as aclnnLayerNorm of x.

    Args:
        x1, x2: [A1, …, Ai, R1, …, Rj], not empty, 1 to 8 dimensions, any strides. One may be in FLOAT beside a
            16-bit other, except on Atlas inference; gamma, beta and what is like x are in FLOAT then.
        gamma, beta: [R1, …, Rj], both in x's dtype or, except on Atlas inference, in FLOAT.
        biasOptional: As gamma or as x1, in the dtype of yOut; None for 0.
        epsilon: Added to the biased variance of a row.
        additionalOutput: Whether xOut is written.
        yOut, xOut: As x1, contiguous. Each may take the place of x1 or x2 exactly.
        meanOut, rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous. CANN: without meaning on Atlas inference.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With x = x1 + x2 in float32: the gradients of aclnnLayerNormBackward at x; dxOut has dsumOptional added. CANN: the
    page writes rstd without epsilon and, in its short form of dxOut, has a sign wrong; the kernels do not.

    Args:
        dy, x1, x2: [A1, …, Ai, R1, …, Rj], not empty, the same dtype, 1 to 8 dimensions, any strides.
        rstd, mean: [A1, …, Ai, 1, …, 1] in FLOAT, used as they are; rstd comes first.
        gamma: [R1, …, Rj] in dy's dtype.
        dsumOptional: The gradient of x where it was used besides, as dy; None for 0.
        dxOut: As dy. May take the place of dy, x1 or x2 exactly.
        dgammaOut, dbetaOut: As gamma, in FLOAT.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With h = alpha·x + gx in float32: yOut = (h - mean)·rstd·gamma + beta, as aclnnLayerNorm of h.

    Args:
        x, gx: [A1, …, Ai, R1, …, Rj], the same dtype, 2 to 8 dimensions, any strides.
        beta, gamma: [R1, …, Rj] in x's dtype, of fewer dimensions than x; beta comes first.
        alpha: What x is multiplied with.
        epsilon: Added to the biased variance of a row.
        meanOut, rstdOut: [A1, …, Ai, 1, …, 1] in FLOAT, contiguous.
        yOut: As x, contiguous. May take the place of x or gx exactly.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
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
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With h = alpha·x + gx in float32: the gradients of aclnnLayerNormBackward at h; dgxOut is h's, dxOut = alpha·dgx.
    CANN: not deterministic on a device; here it is.

    Args:
        dy, x, gx: [A1, …, Ai, R1, …, Rj], the same dtype, 2 to 8 dimensions, any strides.
        gamma: [R1, …, Rj] in x's dtype, of fewer dimensions than x.
        mean, rstd: [A1, …, Ai, 1, …, 1] in FLOAT, used as they are.
        alpha: What x was multiplied with.
        dxOut, dgxOut: As x, contiguous. Each may take the place of dy, x or gx exactly.
        dbetaOut, dgammaOut: As gamma, in FLOAT, contiguous; dbetaOut comes first.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.
    """
    return phase1(DEEP_NORM_GRAD, dy, x, gx, gamma, mean, rstd, alpha, dxOut, dgxOut, dbetaOut, dgammaOut)


aclnnAddLayerNorm = phase2("aclnnAddLayerNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnAddLayerNormGrad = phase2("aclnnAddLayerNormGrad")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnDeepNorm = phase2("aclnnDeepNorm")
"""Run an executor on a stream; as aclnnLayerNormBackward."""

aclnnDeepNormGrad = phase2("aclnnDeepNormGrad")
"""Run an executor on a stream; as aclnnLayerNormBackward."""
