"""aclOpExecutor: a decided call and its tensors, run once, or again and again with other addresses."""

from __future__ import annotations

from typing import Any

from lngrad.ascend.acl.codes import aclnnStatus
from lngrad.ascend.acl.errors import Refused
from lngrad.ascend.acl.memory import Region
from lngrad.ascend.acl.tensor import aclTensor, reported
from lngrad.ascend.aclnn.rules import INPUTS, OUTPUTS
from lngrad.ascend.aclnn.work import Work

__all__ = [
    "aclDestroyAclOpExecutor",
    "aclOpExecutor",
    "aclSetAclOpExecutorRepeatable",
    "aclSetInputTensorAddr",
    "aclSetOutputTensorAddr",
    "living_executor",
]


class aclOpExecutor:
    """A decided call and its tensors: what phase 1 hands to phase 2.

    Attributes:
        alive: False once run (unless repeatable) or destroyed.
        repeatable: whether it may run again.
    """

    __slots__ = ("_bound", "_tensors", "alive", "repeatable", "work")

    def __init__(self, work: Work, tensors: dict[str, aclTensor | None]):
        self.alive, self.repeatable = True, False
        self.work, self._tensors = work, tensors
        self._bound: dict[str, tuple[Any, Region]] = {}  # by aclSetInputTensorAddr, aclSetOutputTensorAddr

    def bind(self, name: str, tensor: aclTensor, addr: Any) -> None:
        """Have a tensor's view laid over another storage in the runs to come.

        Raises:
            Refused: the tensor is not the one that phase 1 got, or the storage does not fit it.
        """
        if self._tensors[name] is not tensor:
            raise _invalid(f"tensor: expected the {name} that phase 1 was given, got another one")
        if addr is None:
            raise Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, "addr: expected an address, got a null pointer")
        self._bound[name] = tensor.view_of("addr", addr)

    def array(self, name: str) -> tuple[Any, Region | None]:
        """The array of a tensor that will be used, and what it lies in.

        Raises:
            Refused: the tensor was destroyed or described anew since phase 1, or has no data.
        """
        tensor = self._tensors[name]
        if tensor is None:
            return None, None
        if not tensor.alive:
            raise _invalid(f"{name}: expected a living aclTensor, got one destroyed since phase 1")
        if tensor.facts is not getattr(self.work.arguments, name) and tensor.facts != getattr(
            self.work.arguments, name
        ):
            raise _invalid(f"{name}: expected what phase 1 saw, got an aclTensor initialised anew: {tensor.facts}")
        array, region = self._bound.get(name) or (tensor.array, tensor.region)
        if array is None:
            raise Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, f"{name}: expected data, got a null address")
        if region is not None and region.block is not None and not region.block.alive:
            raise _invalid(f"{name}: expected device memory that is still allocated, but it was freed")
        return array, region


def aclSetAclOpExecutorRepeatable(executor: aclOpExecutor | None) -> aclnnStatus:
    """Let an executor run any number of times, until aclDestroyAclOpExecutor.

    C: ``aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)``
    """
    try:
        living_executor(executor, aclnnStatus.ACLNN_ERR_INNER_NULLPTR).repeatable = True
    except Refused as refusal:
        return reported(refusal)
    return aclnnStatus.ACLNN_SUCCESS


def aclDestroyAclOpExecutor(executor: aclOpExecutor | None) -> aclnnStatus:
    """Destroy an executor that has not run, or is repeatable; what it has submitted still runs.

    C: ``aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)``
    """
    try:
        living_executor(executor, aclnnStatus.ACLNN_ERR_INNER_NULLPTR).alive = False
    except Refused as refusal:
        return reported(refusal)
    return aclnnStatus.ACLNN_SUCCESS


def aclSetInputTensorAddr(executor: aclOpExecutor | None, index: int, tensor: aclTensor, addr: Any) -> aclnnStatus:
    """Have a repeatable executor read an input from another address in the runs to come.

    Args:
        index: its place among the input tensors of the prototype: gradOut 0, input 1, mean 2, rstd 3, weightOptional 4,
            biasOptional 5, whether or not the optional ones were given.
        tensor: the one that phase 1 got.
        addr: as aclCreateTensor's data.

    C: ``aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr)``
    """
    return _rebind(executor, INPUTS, index, tensor, addr)


def aclSetOutputTensorAddr(executor: aclOpExecutor | None, index: int, tensor: aclTensor, addr: Any) -> aclnnStatus:
    """Have a repeatable executor write an output to another address in the runs to come.

    Args:
        index: gradInputOut 0, gradWeightOut 1, gradBiasOut 2.
        tensor: the one that phase 1 got.
        addr: as aclCreateTensor's data.

    C: ``aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void
    *addr)``
    """
    return _rebind(executor, OUTPUTS, index, tensor, addr)


def _rebind(
    executor: aclOpExecutor | None, names: tuple[str, ...], index: int, tensor: aclTensor, addr: Any
) -> aclnnStatus:
    try:
        known = living_executor(executor, aclnnStatus.ACLNN_ERR_PARAM_NULLPTR)
        if not known.repeatable:
            raise _invalid("executor: expected a repeatable one, see aclSetAclOpExecutorRepeatable")
        if tensor is None:
            raise Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, "tensor: expected an aclTensor, got a null pointer")
        if type(index) is not int or not 0 <= index < len(names):
            raise _invalid(f"index: expected 0 to {len(names) - 1} ({', '.join(names)}), got {index!r}")
        known.bind(names[index], tensor, addr)
    except Refused as refusal:
        return reported(refusal)
    return aclnnStatus.ACLNN_SUCCESS


def living_executor(executor: Any, null: aclnnStatus) -> aclOpExecutor:
    """The executor, if it may be used.

    Raises:
        Refused: with `null` for a null pointer, with ACLNN_ERR_PARAM_INVALID for another object or one that is used up.
    """
    if executor is None:
        raise Refused(null, "executor: expected an aclOpExecutor, got a null pointer")
    if type(executor) is not aclOpExecutor:
        raise _invalid(f"executor: expected an aclOpExecutor, got {type(executor).__name__}")
    if not executor.alive:
        raise _invalid("executor: expected one that has not run and is not destroyed; it is one-shot unless repeatable")
    return executor


def _invalid(text: str) -> Refused:
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)
