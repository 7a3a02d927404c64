"""The two phases, and between them aclOpExecutor: a decided call and its tensors, run once, or again and again with
other addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeAlias

from lngrad.core.threads import get_num_threads
from lngrad.support.addresses import address_of
from lngrad.typing import Array, Bytes
from lngrad_ascend import soc
from lngrad_ascend.acl.enums import aclnnStatus
from lngrad_ascend.acl.interface import (
    Handle,
    StatusError,
    invalid_argument,
    named,
    null_argument,
    report,
    returns_aclnnStatus,
)
from lngrad_ascend.acl.memory import Block, region_of
from lngrad_ascend.acl.streams import aclrtStream, stream_of
from lngrad_ascend.acl.tensor import View, aclTensor
from lngrad_ascend.acl.values import aclTensorList
from lngrad_ascend.aclnn.decision import Decision, decide
from lngrad_ascend.aclnn.operator import AclnnOperator

Phase1: TypeAlias = "tuple[int, aclOpExecutor | None, aclnnStatus]"
Phase2: TypeAlias = "Callable[[object, int, aclOpExecutor | None, aclrtStream | None], aclnnStatus]"


class aclOpExecutor(Handle):
    """A decided call and its tensors: what phase 1 gives to phase 2.

    `arguments` are what phase 1 was given; `rebound` has views over other storages, by aclSetInputTensorAddr and its like.
    """

    __slots__ = ("arguments", "decision", "rebound", "repeatable")

    def __init__(self, decision: Decision, arguments: tuple[object, ...]):
        super().__init__()
        self.decision, self.repeatable, self.arguments = decision, False, arguments
        self.rebound: dict[str, View] = {}

    def memory(self) -> tuple[dict[str, Array], list[Block], list[Hashable]]:
        """The arrays of `decision.tensors` as they lie now, the device's blocks among them, and the places of all."""
        arrays: dict[str, Array] = {}
        blocks: list[Block] = []
        places: list[Hashable] = []
        for name, facts, place in self.decision.tensors:
            tensor = self.arguments[place]
            assert isinstance(tensor, aclTensor)
            if not tensor.alive:
                raise invalid_argument(f"{name}: expected a living aclTensor, got one destroyed since phase 1")
            if tensor.facts is not facts and tensor.facts != facts:
                raise invalid_argument(
                    f"{name}: expected what phase 1 saw, got an aclTensor initialised anew: {tensor.facts}"
                )
            view = self.rebound.get(name, tensor.view)
            if view is None:
                raise null_argument(f"{name}: expected data, got a null address")
            arrays[name], block, where = view
            places.append(where)
            if block is not None:
                if not block.alive:
                    raise invalid_argument(f"{name}: expected device memory that is still allocated, but it was freed")
                blocks.append(block)
        return arrays, blocks, places


def phase1(operator: AclnnOperator, *arguments: object) -> Phase1:
    """Check a call and plan it: what a first phase returns for its arguments, in the prototype's order."""
    decision = decide(operator, operator.facts_of(arguments), soc.current(), get_num_threads())
    if isinstance(decision, StatusError):
        return 0, None, report(decision, aclnnStatus)
    return decision.workspace_bytes, aclOpExecutor(decision, arguments), aclnnStatus.ACLNN_SUCCESS


def phase2(name: str) -> Phase2:
    """The second phase of an operator under its name. All run whatever the executor has."""
    return named(returns_aclnnStatus(run), name, "Run an executor on a stream; as aclnnLayerNormBackward.")


def run(workspace: object, workspaceSize: int, executor: aclOpExecutor | None, stream: aclrtStream | None) -> None:
    """The second phase: check what may have changed since the first, and submit the rest to the stream.

    After a StatusError nothing was written, and a one-shot executor is used up.
    """
    living = check_executor(executor, aclnnStatus.ACLNN_ERR_PARAM_NULLPTR)
    living.alive = living.repeatable
    decision = living.decision
    memory, block = _workspace(decision, workspace, workspaceSize)
    arrays, blocks, places = living.memory()
    if memory is not None:
        places.append((address_of(memory),) if block is None else workspace)  # a device's address is never another's
    checked, call = (*places, workspaceSize), decision.call
    if call is not None and checked not in call.places:
        decision.check_memory(call.plan.problem, arrays, memory)
        call.places.keep(checked, True)
    if block is not None:
        blocks.append(block)
    stream_of(stream).submit(partial(decision.run, arrays, memory, blocks))


def _workspace(decision: Decision, workspace: object, workspaceSize: object) -> tuple[Bytes | None, Block | None]:
    """Return the checked workspace, cut to its size, and the device's block that it lies in; None where absent."""
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
        return None, None
    memory, block = region_of("workspace", workspace)
    if memory.nbytes < workspaceSize:
        raise invalid_argument(
            f"workspace: expected memory of workspaceSize, {workspaceSize} bytes, got {memory.nbytes}"
        )
    if not memory.flags.writeable:
        raise invalid_argument("workspace: expected writable memory, got a read-only buffer")
    return memory[:workspaceSize], block


def check_executor(executor: object, null: aclnnStatus) -> aclOpExecutor:
    """Return an executor that may be used. Raises StatusError; with the code `null` for a null pointer."""
    if executor is None:
        raise StatusError(null, "executor: expected an aclOpExecutor, got a null pointer")
    if not isinstance(executor, aclOpExecutor):
        raise invalid_argument(f"executor: expected an aclOpExecutor, got {type(executor).__name__}")
    if not executor.alive:
        raise invalid_argument(
            "executor: expected one that has not run and is not destroyed; it is one-shot unless repeatable"
        )
    return executor


@returns_aclnnStatus
def aclSetAclOpExecutorRepeatable(executor: aclOpExecutor | None) -> None:
    """Let an executor run any number of times, until aclDestroyAclOpExecutor."""
    check_executor(executor, aclnnStatus.ACLNN_ERR_INNER_NULLPTR).repeatable = True


@returns_aclnnStatus
def aclDestroyAclOpExecutor(executor: aclOpExecutor | None) -> None:
    """Destroy an executor that has not run, or is repeatable; what it has submitted still runs."""
    check_executor(executor, aclnnStatus.ACLNN_ERR_INNER_NULLPTR).alive = False


@returns_aclnnStatus
def aclSetInputTensorAddr(executor: aclOpExecutor | None, index: int, tensor: aclTensor, addr: object) -> None:
    """Have a repeatable executor read an input from another address in the runs to come.

    Args:
        executor: From phase 1, made repeatable.
        index: Its place among the input tensors of the prototype, whether or not the optional ones were given. Of
            aclnnLayerNormBackward: gradOut 0, input 1, mean 2, rstd 3, weightOptional 4, biasOptional 5; of
            aclnnLayerNorm and its like: input 0, weightOptional 1, biasOptional 2.
        tensor: The one that phase 1 got.
        addr: As aclCreateTensor's data.
    """
    _rebind(executor, lambda operator: operator.inputs, index, tensor, addr)


@returns_aclnnStatus
def aclSetOutputTensorAddr(executor: aclOpExecutor | None, index: int, tensor: aclTensor, addr: object) -> None:
    """Have a repeatable executor write an output to another address in the runs to come.

    Args:
        executor, tensor, addr: As for aclSetInputTensorAddr.
        index: Its place among the output tensors of the prototype. Of aclnnLayerNormBackward: gradInputOut 0,
            gradWeightOut 1, gradBiasOut 2; of aclnnLayerNorm and its like: out 0, meanOutOptional 1,
            rstdOutOptional 2.
    """
    _rebind(executor, lambda operator: operator.outputs, index, tensor, addr)


@returns_aclnnStatus
def aclSetTensorAddr(executor: aclOpExecutor | None, index: int, tensor: aclTensor, addr: object) -> None:
    """Have a repeatable executor find a tensor at another address in the runs to come.

    Args:
        executor, tensor, addr: As for aclSetInputTensorAddr.
        index: Its place among all tensors of the prototype: the inputs, then the outputs.
    """
    _rebind(executor, lambda operator: operator.inputs + operator.outputs, index, tensor, addr)


def _refused(name: str, where: str) -> Callable[[aclOpExecutor | None, int, int, aclTensorList, object], aclnnStatus]:
    @returns_aclnnStatus
    def call(
        executor: aclOpExecutor | None, irIndex: int, relativeIndex: int, tensors: aclTensorList, addr: object
    ) -> None:
        function = _repeatable(executor).decision.operator.name
        raise invalid_argument(f"tensors: expected the list that phase 1 was given, but {function} takes none")

    return named(call, name, f"Refused: the functions here have no list of tensors{where}.")


aclSetDynamicInputTensorAddr = _refused("aclSetDynamicInputTensorAddr", " among their inputs")
aclSetDynamicOutputTensorAddr = _refused("aclSetDynamicOutputTensorAddr", " among their outputs")
aclSetDynamicTensorAddr = _refused("aclSetDynamicTensorAddr", "")

# CANN: the older spelling, still exported.
AclSetInputTensorAddr = aclSetInputTensorAddr
AclSetOutputTensorAddr = aclSetOutputTensorAddr
AclSetTensorAddr = aclSetTensorAddr
AclSetDynamicInputTensorAddr = aclSetDynamicInputTensorAddr
AclSetDynamicOutputTensorAddr = aclSetDynamicOutputTensorAddr
AclSetDynamicTensorAddr = aclSetDynamicTensorAddr


def _repeatable(executor: object) -> aclOpExecutor:
    living = check_executor(executor, aclnnStatus.ACLNN_ERR_PARAM_NULLPTR)
    if not living.repeatable:
        raise invalid_argument("executor: expected a repeatable one, see aclSetAclOpExecutorRepeatable")
    return living


def _rebind(
    executor: object, names_of: Callable[[AclnnOperator], tuple[str, ...]], index: object, tensor: object, addr: object
) -> None:
    living = _repeatable(executor)
    names, places = names_of(living.decision.operator), living.decision.operator.places
    if type(index) is not int or not 0 <= index < len(names):
        raise invalid_argument(f"index: expected 0 to {len(names) - 1} ({', '.join(names)}), got {index!r}")
    name = names[index]
    if tensor is None:
        raise null_argument("tensor: expected an aclTensor, got a null pointer")
    if not isinstance(tensor, aclTensor) or living.arguments[places[name]] is not tensor:
        raise invalid_argument(f"tensor: expected the {name} that phase 1 was given, got another one")
    if addr is None:
        raise null_argument("addr: expected an address, got a null pointer")
    if (view := tensor.view_of("addr", addr)) is not None:
        living.rebound[name] = view


@returns_aclnnStatus
def aclnnInit(configPath: str | None = None) -> None:
    """Do nothing: the aclnn functions need no initialising."""


@returns_aclnnStatus
def aclnnFinalize() -> None:
    """Do nothing."""
