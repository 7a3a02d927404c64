"""What aclnnLayerNormBackward's second phase does around the core's plan: conversions, in the caller's workspace.

The core computes; here lies only what CANN's host code does with Cast and ViewCopy, and only where it is needed:

- inputs that the core does not take as they are get a float32 copy (a bfloat16 mean beside a float16 input);
- outputs that the core can't write get a stand-in, which is rounded once and copied (a float16 gradInputOut of a
  float32 input; a gradWeightOut of shape (1, N); bfloat16 rounded as Atlas A2 rounds it).

A gradInputOut of a 16-bit input that is not to be rounded as the core does it needs float32 copies of all inputs, which
are exact, as CANN's kernels make them too. CANN: gradInput is rounded to input's dtype before; here it is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lngrad.api import execute
from lngrad.arrays import address_of
from lngrad.ascend.acl.codes import aclDataType, aclnnStatus
from lngrad.ascend.acl.errors import Refused
from lngrad.ascend.acl.tensor import DTYPES, TensorFacts, contiguous_strides
from lngrad.ascend.aclnn.rules import OUTPUTS, Arguments, Checked, check, normalized_axis
from lngrad.ascend.rounding import round_half_away, rounds_half_away
from lngrad.ascend.soc import Target
from lngrad.errors import BackendUnavailable
from lngrad.plan import Plan, make_plan
from lngrad.problem import Grads, Problem

__all__ = ["USED", "Work", "decide", "run"]

USED = ("gradOut", "input", "mean", "rstd", "weightOptional")  # the inputs that are read, in the core's order
ALIGNMENT = 64
FLOAT = aclDataType.ACL_FLOAT


class StandIn(NamedTuple):
    """A contiguous array in the workspace, in place of an argument."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    half_away: bool  # round to bfloat16 so, before it is copied


@dataclass(frozen=True, eq=False)
class Work:
    """A decided call.

    Attributes:
        arguments: the facts that phase 2 must find unchanged.
        plan: the core's; None if there is nothing to compute.
        wanted: names of the outputs that are written.
        inputs: for each name of USED, its float32 copy, or None if the core reads the tensor itself.
        outputs: for each name of OUTPUTS, its stand-in, or None if the core writes the tensor itself.
        plan_start: where the plan's own workspace begins.
        workspace_bytes: all of it.
    """

    arguments: Checked
    plan: Plan | None
    wanted: tuple[str, ...]
    inputs: tuple[StandIn | None, ...] = (None,) * 5
    outputs: tuple[StandIn | None, ...] = (None,) * 3
    plan_start: int = 0
    workspace_bytes: int = 0

    @property
    def direct(self) -> bool:
        """Whether the core works on the tensors themselves."""
        return not any((*self.inputs, *self.outputs))


class _Room:
    """Hands out places of the workspace."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any], half_away: bool = False) -> StandIn:
        start = self.used
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        self.used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return StandIn(start, shape, dtype, half_away)


@lru_cache(maxsize=4096)
def decide(arguments: Arguments, target: Target, threads: int) -> Work | Refused:
    """Check a call and plan it: a pure function of facts.

    Args:
        arguments: the facts of all arguments.
        target: what is simulated.
        threads: how many the core may use; a plan is made for a number of threads.

    Returns:
        The work, or the refusal that phase 1 reports.
    """
    try:
        checked = check(arguments, target)
        return _plan_work(checked, rounds_half_away(target))
    except Refused as refusal:
        return refusal.with_traceback(None)  # it is kept, its frames are not
    except BackendUnavailable as reason:
        return Refused(aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, str(reason))


def _plan_work(checked: Checked, half_away: bool) -> Work:
    wanted = tuple(name for name, _ in checked.masked_on())
    if not wanted or 0 in checked.input.shape:
        return Work(checked, None, wanted)
    room = _Room()
    dtype, grad = checked.input.dtype, checked.gradInputOut if checked.outputMask[0] else None
    widened = dtype != FLOAT and grad is not None and (grad.dtype != dtype or _is_away(grad, half_away))
    inputs = tuple(_input_copy(name, getattr(checked, name), dtype, widened, room) for name in USED)
    trailing = checked.input.shape[normalized_axis(checked) :]
    outputs = tuple(
        _output_stand_in(name, getattr(checked, name), FLOAT if widened else dtype, trailing, half_away, room)
        if name in wanted
        else None
        for name in OUTPUTS
    )
    dy, x, mean, rstd, gamma = (
        _shadow(getattr(checked, name), stand_in) for name, stand_in in zip(USED, inputs, strict=True)
    )
    out = Grads(
        *(
            _shadow(getattr(checked, name) if name in wanted else None, stand_in)
            for name, stand_in in zip(OUTPUTS, outputs, strict=True)
        )
    )
    problem, _ = Problem.backward(dy, x, mean, rstd, gamma, trailing, checked.outputMask, out)
    plan = make_plan(problem)
    slack = ALIGNMENT if room.used else 0  # lets the workspace begin anywhere
    return Work(checked, plan, wanted, inputs, outputs, room.used, room.used + slack + plan.workspace_bytes)


def _is_away(output: TensorFacts, half_away: bool) -> bool:
    return half_away and output.dtype == aclDataType.ACL_BF16


def _input_copy(name: str, facts: TensorFacts | None, dtype: aclDataType, widened: bool, room: _Room) -> StandIn | None:
    """The core takes statistics and gamma in input's dtype or float32."""
    if facts is None or facts.dtype == FLOAT or (facts.dtype == dtype and not widened):
        return None
    return room.take(facts.shape, DTYPES[FLOAT])


def _output_stand_in(
    name: str, facts: TensorFacts, dtype: aclDataType, trailing: tuple[int, ...], half_away: bool, room: _Room
) -> StandIn | None:
    """The core writes gradInput in the dtype it computes, the sums in any dtype; both only in their own shape."""
    away = _is_away(facts, half_away)
    if away or (name == "gradInputOut" and facts.dtype != dtype):
        return room.take(facts.shape if name == "gradInputOut" else trailing, DTYPES[FLOAT], away)
    if name != "gradInputOut" and facts.shape != trailing:
        return room.take(trailing, DTYPES[facts.dtype])
    return None


def _shadow(facts: TensorFacts | None, stand_in: StandIn | None) -> Any:
    """An array with these facts, to describe a problem with; there is no data behind it."""
    if facts is None:
        return None
    dtype = DTYPES[facts.dtype] if stand_in is None else stand_in.dtype
    shape = facts.shape if stand_in is None else stand_in.shape
    strides = facts.strides if stand_in is None else contiguous_strides(shape)
    one, steps = np.empty(1, dtype), tuple(stride * dtype.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(one, shape, steps)


# --- Running --------------------------------------------------------------------------------------------------------


def run(
    work: Work, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: np.ndarray[Any, np.dtype[np.uint8]] | None
) -> None:
    """Compute, in the caller's memory alone.

    Args:
        work: from decide.
        inputs: arrays of USED; None for a null weightOptional.
        outputs: arrays of OUTPUTS; None where masked off.
        workspace: at least work.workspace_bytes; None if that is 0.
    """
    if work.plan is None:
        for output in outputs:  # no rows: sums over nothing; no columns: nothing to write
            if output is not None:
                output[...] = 0
        return
    if work.direct or workspace is None:
        execute(work.plan, inputs, outputs, workspace)
        return
    room = workspace[-address_of(workspace) % ALIGNMENT :]
    read = tuple(_filled(room, one, array) for one, array in zip(work.inputs, inputs, strict=True))
    written = tuple(
        array if one is None else _view(room, one) for one, array in zip(work.outputs, outputs, strict=True)
    )
    execute(work.plan, read, written, room[work.plan_start :])
    for one, result, output in zip(work.outputs, written, outputs, strict=True):
        if one is not None:
            _deliver(one, result, output)


def _view(room: np.ndarray[Any, Any], one: StandIn) -> np.ndarray[Any, Any]:
    return np.ndarray(one.shape, one.dtype, room, one.start)


def _filled(room: np.ndarray[Any, Any], one: StandIn | None, array: Any) -> Any:
    if one is None:
        return array
    copy = _view(room, one)
    np.copyto(copy, array)
    return copy


def _deliver(one: StandIn, result: np.ndarray[Any, Any], output: np.ndarray[Any, Any]) -> None:
    if one.half_away:
        round_half_away(result)
    with np.errstate(over="ignore", invalid="ignore"):  # too large for float16 is infinity, as in the core
        np.copyto(output, result.reshape(output.shape), casting="unsafe")
