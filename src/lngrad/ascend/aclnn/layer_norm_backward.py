"""aclnnLayerNormBackward in two phases: check and plan, then run.

Phase 1 is the core's plan, phase 2 runs it on the caller's outputs and workspace: there is no
second arithmetic. Which SoC, CANN release, mode and rounding apply is what
``lngrad.ascend.soc.use`` chose when phase 1 was called.
"""

from __future__ import annotations

from lngrad.ascend import soc
from lngrad.ascend.acl.refusals import returns_status
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.stream_worker import aclrtStream
from lngrad.ascend.acl.tensor import aclTensor
from lngrad.ascend.acl.values import aclBoolArray, aclIntArray
from lngrad.ascend.aclnn.arguments import array_values, tensor_facts
from lngrad.ascend.aclnn.backward_decision import decide
from lngrad.ascend.aclnn.backward_rules import Arguments
from lngrad.ascend.aclnn.executor import aclOpExecutor
from lngrad.ascend.aclnn.phases import get_workspace_size, run
from lngrad.core.threads import get_num_threads


def aclnnLayerNormBackwardGetWorkspaceSize(
    gradOut: aclTensor,
    input: aclTensor,
    normalizedShape: aclIntArray,
    mean: aclTensor,
    rstd: aclTensor,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    outputMask: aclBoolArray,
    gradInputOut: aclTensor | None,
    gradWeightOut: aclTensor | None,
    gradBiasOut: aclTensor | None,
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

    With res = (input - mean)·rstd, dy_g = gradOut·weight, means over the normalized dimensions,
    sums over the others: gradInput = (dy_g - (mean(dy_g) + res·mean(dy_g·res)))·rstd, gradWeight =
    Σ gradOut·res, gradBias = Σ gradOut.

    Args:
        gradOut, input: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        normalizedShape: [R1, …, Rj].
        mean, rstd: One element per row, used as they are.
        weightOptional: [R1, …, Rj] in input's dtype or FLOAT; None for 1.
        biasOptional: Checked as weightOptional is, and never read.
        outputMask: Three booleans: which outputs are wanted. The others may be None and are never
            touched.
        gradInputOut: As input; gradWeightOut, gradBiasOut: [R1, …, Rj]. Each is rounded once to its
            tensor's own dtype.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.

    C: ``aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(const aclTensor *gradOut, const
    aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *mean, const aclTensor
    *rstd, const aclTensor *weightOptional, const aclTensor *biasOptional, const aclBoolArray
    *outputMask, aclTensor *gradInputOut, aclTensor *gradWeightOut, aclTensor *gradBiasOut, uint64_t
    *workspaceSize, aclOpExecutor **executor)``
    """
    arguments = Arguments(
        tensor_facts("gradOut", gradOut),
        tensor_facts("input", input),
        array_values("normalizedShape", normalizedShape, aclIntArray),
        tensor_facts("mean", mean),
        tensor_facts("rstd", rstd),
        tensor_facts("weightOptional", weightOptional),
        tensor_facts("biasOptional", biasOptional),
        array_values("outputMask", outputMask, aclBoolArray),
        tensor_facts("gradInputOut", gradInputOut),
        tensor_facts("gradWeightOut", gradWeightOut),
        tensor_facts("gradBiasOut", gradBiasOut),
    )
    decision = decide(arguments, soc.current(), get_num_threads())
    inputs = (gradOut, input, mean, rstd, weightOptional, biasOptional)
    return get_workspace_size(decision, (*inputs, gradInputOut, gradWeightOut, gradBiasOut))


@returns_status(aclnnStatus)
def aclnnLayerNormBackward(
    workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None
) -> None:
    """Run an executor on a stream: returns at once, the results are there after
    aclrtSynchronizeStream.

    An executor runs once, unless it was made repeatable; a failure, too, uses it up.

    Args:
        workspace: A device address or a writable host buffer; None if the size is 0. No tensor's
            memory, and the stream's alone until it has run.
        workspaceSize: At least what phase 1 returned.
        executor: From phase 1.
        stream: From aclrtCreateStream, or None for the default stream.

    Returns:
        ACLNN_ERR_PARAM_NULLPTR for a null executor, workspace or data address;
        ACLNN_ERR_PARAM_INVALID for anything else that can't be run. Nothing was written then.

    C: ``aclnnStatus aclnnLayerNormBackward(void *workspace, uint64_t workspaceSize, aclOpExecutor
    *executor, aclrtStream stream)``. CANN: memory that an output shares with an input, another
    output or the workspace goes unnoticed; here it is refused, unless gradInputOut takes the place
    of gradOut or input exactly.
    """
    run(workspace, workspaceSize, executor, stream)
