"""aclnnLayerNorm, aclnnLayerNormWithImplMode and aclnnFastLayerNorm in two phases; see
layer_norm_backward.py.

All three compute the same here: the core's forward, in float32, each result rounded once. CANN: the
implementation modes and the fast function trade accuracy for speed on a device.
"""

from __future__ import annotations

from lngrad.ascend import soc
from lngrad.ascend.acl.refusals import returns_status
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.stream_worker import aclrtStream
from lngrad.ascend.acl.tensor import aclTensor
from lngrad.ascend.acl.values import aclIntArray
from lngrad.ascend.aclnn.arguments import Prototype, array_values, number, tensor_facts
from lngrad.ascend.aclnn.executor import aclOpExecutor
from lngrad.ascend.aclnn.forward_decision import decide
from lngrad.ascend.aclnn.forward_rules import FAST, LAYER_NORM, WITH_IMPL_MODE, Arguments
from lngrad.ascend.aclnn.phases import get_workspace_size, run
from lngrad.core.threads import get_num_threads

HIGH_PRECISION = 0


def aclnnLayerNormGetWorkspaceSize(
    input: aclTensor,
    normalizedShape: aclIntArray,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    eps: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    out = (input - mean)·rstd·weight + bias, with rstd = 1/sqrt(variance + eps) of each row.

    Args:
        input: [A1, …, Ai, R1, …, Rj], 1 to 8 dimensions, any strides; empty ones are taken.
        normalizedShape: [R1, …, Rj].
        weightOptional, biasOptional: [R1, …, Rj] in input's dtype or FLOAT, both in the same; None
            for 1 and for 0.
        eps: Added to the biased variance of a row.
        out: As input. May take the place of input exactly.
        meanOutOptional, rstdOutOptional: [A1, …, Ai, 1, …, 1], or None. Each output is rounded once
            to its tensor's own dtype.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.

    C: ``aclnnStatus aclnnLayerNormGetWorkspaceSize(const aclTensor *input, const aclIntArray
    *normalizedShape, const aclTensor *weightOptional, const aclTensor *biasOptional, double eps,
    aclTensor *out, aclTensor *meanOutOptional, aclTensor *rstdOutOptional, uint64_t *workspaceSize,
    aclOpExecutor **executor)``
    """
    tensors = (input, weightOptional, biasOptional, out, meanOutOptional, rstdOutOptional)
    return _get_workspace_size(LAYER_NORM, tensors, normalizedShape, eps, HIGH_PRECISION)


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
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    Args:
        input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional,
            rstdOutOptional: As for aclnnLayerNormGetWorkspaceSize.
        implMode: 0 for high precision, 1 for high performance, 2 for float16, which wants
            ACL_FLOAT16 inputs. All compute with high precision here.

    C: ``aclnnStatus aclnnLayerNormWithImplModeGetWorkspaceSize(…, aclTensor *rstdOutOptional,
    int32_t implMode, uint64_t *workspaceSize, aclOpExecutor **executor)``
    """
    tensors = (input, weightOptional, biasOptional, out, meanOutOptional, rstdOutOptional)
    return _get_workspace_size(WITH_IMPL_MODE, tensors, normalizedShape, eps, implMode)


def aclnnFastLayerNormGetWorkspaceSize(
    input: aclTensor,
    normalizedShape: aclIntArray,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    eps: float,
    out: aclTensor,
    meanOutOptional: aclTensor | None,
    rstdOutOptional: aclTensor | None,
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    Args:
        input, normalizedShape, weightOptional, biasOptional, eps, out, meanOutOptional,
            rstdOutOptional: As for aclnnLayerNormGetWorkspaceSize; at most 583,705,600 normalized
            elements. Atlas A2 and A3 alone have it.

    C: ``aclnnStatus aclnnFastLayerNormGetWorkspaceSize(…)``, as aclnnLayerNormGetWorkspaceSize.
    """
    tensors = (input, weightOptional, biasOptional, out, meanOutOptional, rstdOutOptional)
    return _get_workspace_size(FAST, tensors, normalizedShape, eps, HIGH_PRECISION)


def _get_workspace_size(
    prototype: Prototype, tensors: tuple[object, ...], normalizedShape: object, eps: object, implMode: object
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    names = prototype.inputs + prototype.outputs
    source, weight, bias, out, mean, rstd = map(tensor_facts, names, tensors)
    norm = array_values("normalizedShape", normalizedShape, aclIntArray)
    numbers = number("eps", eps), number("implMode", implMode)
    arguments = Arguments(source, norm, weight, bias, numbers[0], out, mean, rstd, numbers[1])
    return get_workspace_size(decide(prototype, arguments, soc.current(), get_num_threads()), tensors)


@returns_status(aclnnStatus)
def aclnnLayerNorm(
    workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None
) -> None:
    """Run an executor on a stream; as aclnnLayerNormBackward.

    C: ``aclnnStatus aclnnLayerNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor
    *executor, aclrtStream stream)``
    """
    run(workspace, workspaceSize, executor, stream)


@returns_status(aclnnStatus)
def aclnnLayerNormWithImplMode(
    workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None
) -> None:
    """Run an executor on a stream; as aclnnLayerNormBackward.

    C: ``aclnnStatus aclnnLayerNormWithImplMode(void *workspace, uint64_t workspaceSize,
    aclOpExecutor *executor, aclrtStream stream)``
    """
    run(workspace, workspaceSize, executor, stream)


@returns_status(aclnnStatus)
def aclnnFastLayerNorm(
    workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None
) -> None:
    """Run an executor on a stream; as aclnnLayerNormBackward.

    C: ``aclnnStatus aclnnFastLayerNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor
    *executor, aclrtStream stream)``
    """
    run(workspace, workspaceSize, executor, stream)
