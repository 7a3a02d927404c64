"""The two phases, whatever is computed: an executor from a decision, and a task from an executor
and its memory.
"""

from __future__ import annotations

from lngrad.ascend.acl.heap import Region, region_of, require_allocated
from lngrad.ascend.acl.refusals import Refused, invalid_argument, null_argument, report
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.stream_worker import submit
from lngrad.ascend.aclnn.decision import Decision
from lngrad.ascend.aclnn.executor import aclOpExecutor, check_executor


def get_workspace_size(
    decision: Decision | Refused, tensors: tuple[object, ...]
) -> tuple[int, aclOpExecutor | None, aclnnStatus]:
    """The first phase's results: (workspaceSize, executor, ret).

    Args:
        decision: About the facts of the arguments.
        tensors: The arguments that are tensors, in the prototype's order: inputs, then outputs.
    """
    if isinstance(decision, Refused):
        return 0, None, report(decision, aclnnStatus)
    return decision.workspace_bytes, aclOpExecutor(decision, tensors), aclnnStatus.ACLNN_SUCCESS


def run(workspace: object, workspaceSize: object, executor: object, stream: object) -> None:
    """The second phase: check what may have changed since the first, and submit the rest to the
    stream.

    Raises:
        Refused: A null pointer, or what can't be run. Nothing was written, and a one-shot executor
            is used up.
    """
    known = check_executor(executor, aclnnStatus.ACLNN_ERR_PARAM_NULLPTR)
    known.alive = known.repeatable
    decision = known.decision
    room = _workspace(decision, workspace, workspaceSize)
    inputs, outputs, blocks = known.arrays()
    memory = None if room is None else room.memory
    decision.check_memory(inputs, outputs, memory)
    if room is not None and room.block is not None:
        blocks.append(room.block)

    def task() -> None:
        require_allocated(decision.prototype.function, blocks)
        decision.run(inputs, outputs, memory)

    submit(stream, task)


def _workspace(decision: Decision, workspace: object, workspaceSize: object) -> Region | None:
    """The checked workspace, cut to its size."""
    if type(workspaceSize) is not int or workspaceSize < 0:
        raise invalid_argument(f"workspaceSize: expected a number of bytes, got {workspaceSize!r}")
    if workspaceSize > 0 and workspace is None:
        raise null_argument(f"workspace: expected {workspaceSize} bytes of memory, got a null pointer")
    if workspaceSize < decision.workspace_bytes:
        raise invalid_argument(
            f"workspaceSize: expected at least the {decision.workspace_bytes} bytes that phase 1 returned, "
            f"got {workspaceSize}"
        )
    if decision.workspace_bytes == 0:
        return None
    memory, block = region_of("workspace", workspace)
    if memory.nbytes < workspaceSize:
        raise invalid_argument(
            f"workspace: expected memory of workspaceSize, {workspaceSize} bytes, got {memory.nbytes}"
        )
    if not memory.flags.writeable:
        raise invalid_argument("workspace: expected writable memory, got a read-only buffer")
    return Region(memory[:workspaceSize], block)
