"""aclnnLayerNormBackward in two phases: check and plan, then run.

Phase 1 is the core's plan, phase 2 its execute on the caller's outputs and workspace: there is no second arithmetic.
Which SoC, CANN release, mode and rounding apply is what ``lngrad.ascend.soc.use`` chose when phase 1 was called.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from lngrad.ascend import soc
from lngrad.ascend.acl.codes import aclError, aclnnStatus
from lngrad.ascend.acl.errors import Refused
from lngrad.ascend.acl.memory import Region, region_of
from lngrad.ascend.acl.stream import submit
from lngrad.ascend.acl.tensor import aclBoolArray, aclIntArray, aclTensor, reported
from lngrad.ascend.aclnn.executor import aclOpExecutor, living_executor
from lngrad.ascend.aclnn.rules import INPUTS, OUTPUTS, Arguments, Unusable
from lngrad.ascend.aclnn.work import USED, Work, decide, run
from lngrad.errors import OverlapError
from lngrad.overlap import check_memory
from lngrad.system.threads import get_num_threads

__all__ = ["aclnnLayerNormBackward", "aclnnLayerNormBackwardGetWorkspaceSize"]


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
    """Check a call, and tell how much workspace it takes. Returns (workspaceSize, executor, ret).

    With res = (input - mean)·rstd, dy_g = gradOut·weight, means over the normalized dimensions, sums over the others:
    gradInput = (dy_g - (mean(dy_g) + res·mean(dy_g·res)))·rstd, gradWeight = Σ gradOut·res, gradBias = Σ gradOut.

    Args:
        gradOut, input: [A1, …, Ai, R1, …, Rj], the same dtype, 1 to 8 dimensions, any strides.
        normalizedShape: [R1, …, Rj].
        mean, rstd: one element per row, used as they are.
        weightOptional: [R1, …, Rj] in input's dtype or FLOAT; None for 1.
        biasOptional: checked as weightOptional is, and never read.
        outputMask: three booleans: which outputs are wanted. The others may be None and are never touched.
        gradInputOut: as input; gradWeightOut, gradBiasOut: [R1, …, Rj]. Each is rounded once to its tensor's own dtype.

    Returns:
        On failure workspaceSize is 0 and executor None; aclGetRecentErrMsg has the text.

    C: ``aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(const aclTensor *gradOut, const aclTensor *input, const
    aclIntArray *normalizedShape, const aclTensor *mean, const aclTensor *rstd, const aclTensor *weightOptional, const
    aclTensor *biasOptional, const aclBoolArray *outputMask, aclTensor *gradInputOut, aclTensor *gradWeightOut,
    aclTensor *gradBiasOut, uint64_t *workspaceSize, aclOpExecutor **executor)``
    """
    arguments = Arguments(
        _tensor_facts("gradOut", gradOut),
        _tensor_facts("input", input),
        _values("normalizedShape", normalizedShape, aclIntArray),
        _tensor_facts("mean", mean),
        _tensor_facts("rstd", rstd),
        _tensor_facts("weightOptional", weightOptional),
        _tensor_facts("biasOptional", biasOptional),
        _values("outputMask", outputMask, aclBoolArray),
        _tensor_facts("gradInputOut", gradInputOut),
        _tensor_facts("gradWeightOut", gradWeightOut),
        _tensor_facts("gradBiasOut", gradBiasOut),
    )
    decision = decide(arguments, soc.current(), get_num_threads())
    if isinstance(decision, Refused):
        return 0, None, reported(decision)
    tensors = (gradOut, input, mean, rstd, weightOptional, biasOptional, gradInputOut, gradWeightOut, gradBiasOut)
    executor = aclOpExecutor(decision, dict(zip(INPUTS + OUTPUTS, tensors, strict=True)))
    return decision.workspace_bytes, executor, aclnnStatus.ACLNN_SUCCESS


def _tensor_facts(name: str, tensor: Any) -> Any:
    if type(tensor) is aclTensor and tensor.alive:
        return tensor.facts
    return _unusable(name, tensor, aclTensor)


def _values(name: str, array: Any, kind: type[Any]) -> Any:
    if type(array) is kind and array.alive:
        return array.values
    return _unusable(name, array, kind)


def _unusable(name: str, argument: Any, kind: type[Any]) -> Unusable | None:
    if argument is None:
        return None
    got = "a destroyed one" if type(argument) is kind else type(argument).__name__
    return Unusable(f"{name}: expected a living {kind.__name__}, got {got}")


def aclnnLayerNormBackward(
    workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any
) -> aclnnStatus:
    """Run an executor on a stream: returns at once, the results are there after aclrtSynchronizeStream.

    An executor runs once, unless it was made repeatable; a failure, too, uses it up.

    Args:
        workspace: a device address or a writable host buffer; None if the size is 0. No tensor's memory, and the
            stream's alone until it has run.
        workspaceSize: at least what phase 1 told.
        executor: from phase 1.
        stream: from aclrtCreateStream, or None for the default stream.

    Returns:
        ACLNN_ERR_PARAM_NULLPTR for a null executor, workspace or data address; ACLNN_ERR_PARAM_INVALID for anything
        else that can't be run. Nothing was written then.

    C: ``aclnnStatus aclnnLayerNormBackward(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
    aclrtStream stream)``. CANN: memory that an output shares with an input, another output or the workspace goes
    unnoticed; here it is refused, unless gradInputOut takes the place of gradOut or input exactly.
    """
    try:
        known = living_executor(executor, aclnnStatus.ACLNN_ERR_PARAM_NULLPTR)
        if not known.repeatable:
            known.alive = False
        _submit(known, workspace, workspaceSize, stream)
    except Refused as refusal:
        return reported(refusal)
    return aclnnStatus.ACLNN_SUCCESS


def _submit(executor: aclOpExecutor, workspace: Any, workspaceSize: Any, stream: Any) -> None:
    work = executor.work
    room = _workspace(work, workspace, workspaceSize)
    if not work.wanted:
        submit(stream, _nothing)
        return
    used = [executor.array(name) for name in USED]
    written = [executor.array(name) if name in work.wanted else (None, None) for name in OUTPUTS]
    inputs, outputs = tuple(array for array, _ in used), tuple(array for array, _ in written)
    if work.plan is not None:
        _check_overlaps(work, inputs, outputs, None if room is None else room.memory)
    blocks = [region.block for _, region in (*used, *written) if region is not None and region.block is not None]
    if room is not None and room.block is not None:
        blocks.append(room.block)

    def task() -> None:
        if not all(block.alive for block in blocks):
            raise Refused(
                aclError.ACL_ERROR_RT_FAILURE,
                "aclnnLayerNormBackward: device memory of a tensor or the workspace was freed before the stream ran",
            )
        run(work, inputs, outputs, None if room is None else room.memory)

    submit(stream, task)


def _nothing() -> None:
    """The task of a call that wants no output."""


def _workspace(work: Work, workspace: Any, workspaceSize: Any) -> Region | None:
    """The checked workspace, cut to its size."""
    if type(workspaceSize) is not int or workspaceSize < 0:
        raise _invalid(f"workspaceSize: expected a number of bytes, got {workspaceSize!r}")
    if workspaceSize > 0 and workspace is None:
        raise Refused(
            aclnnStatus.ACLNN_ERR_PARAM_NULLPTR,
            f"workspace: expected {workspaceSize} bytes of memory, got a null pointer",
        )
    if workspaceSize < work.workspace_bytes:
        raise _invalid(
            f"workspaceSize: expected at least the {work.workspace_bytes} bytes that phase 1 told, got {workspaceSize}"
        )
    if work.workspace_bytes == 0:
        return None
    memory, block = region_of("workspace", workspace)
    if memory.nbytes < workspaceSize:
        raise _invalid(f"workspace: expected memory of workspaceSize, {workspaceSize} bytes, got {memory.nbytes}")
    if not memory.flags.writeable:
        raise _invalid("workspace: expected writable memory, got a read-only buffer")
    return Region(memory[:workspaceSize], block)


# The core's names in its error texts, as the caller spells them.
_NAMES = {
    "dy": "gradOut",
    "x": "input",
    "gamma": "weightOptional",
    "out.dx": "gradInputOut",
    "out.dgamma": "gradWeightOut",
    "out.dbeta": "gradBiasOut",
}
_NAME = re.compile(r"\b(out\.\w+|dy|x|gamma)\b")


def _check_overlaps(work: Work, inputs: tuple[Any, ...], outputs: tuple[Any, ...], room: Any) -> None:
    assert work.plan is not None
    try:
        check_memory(work.plan.problem, inputs, outputs)
    except OverlapError as reason:
        raise _invalid(_NAME.sub(lambda match: _NAMES[match[0]], str(reason))) from None
    for name, array in zip(USED + OUTPUTS, inputs + outputs, strict=True):
        if array is not None and room is not None and np.may_share_memory(room, array):
            raise _invalid(f"workspace: expected memory of its own, but it shares some with {name}")


def _invalid(text: str) -> Refused:
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)
