"""A decided call: what the second phase does, once it has the memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lngrad.ascend.acl.refusals import Refused, invalid_argument
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.arguments import Prototype
from lngrad.ascend.aclnn.conversions import ALIGNMENT, Room, StandIn, core_facts
from lngrad.core.arrays import ArraySpec, address_of
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import Problem, check_memory
from lngrad.errors import BackendUnavailable, OverlapError
from lngrad.typing import Array, Bytes

Arrays = tuple[Array | None, ...]


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor that the second phase reads or writes.

    Attributes:
        name: As the C prototype spells it.
        core_name: As the core's error texts spell it.
        facts: What phase 2 must find unchanged; None: it was not given, or is not wanted.
        stand_in: The core's own array in the workspace; None where it works on the tensor itself.
        fill: What an output gets where there is nothing to compute.
    """

    name: str
    core_name: str
    facts: TensorFacts | None
    stand_in: StandIn | None = None
    fill: float = 0.0


@dataclass(frozen=True, eq=False)
class Decision:
    """A decided call.

    Attributes:
        prototype: Of the functions that were called.
        reads, writes: Tensors in the core's order.
        plan: The core's; None if there is nothing to compute.
        numbers: Arguments of the core after its arrays: the forward's eps.
        plan_start: Where the plan's own workspace begins, after the stand-ins.
        workspace_bytes: All of it.
    """

    prototype: Prototype
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    plan: Plan | None
    numbers: tuple[float, ...] = ()
    plan_start: int = 0
    workspace_bytes: int = 0

    def check_memory(self, inputs: Arrays, outputs: Arrays, workspace: Bytes | None) -> None:
        """Check that no output shares memory with anything else, and the workspace with nothing.

        Raises:
            Refused: Naming both, as the caller spells them. Nothing was written.
        """
        if self.plan is None:
            return
        try:
            check_memory(self.plan.problem, inputs, outputs)
        except OverlapError as reason:
            names = {argument.core_name: argument.name for argument in (*self.reads, *self.writes)}
            pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
            text = re.sub(rf"(?<![\w.])({pattern})\b", lambda match: names[match[0]], str(reason))
            raise invalid_argument(text) from None
        if workspace is None:
            return
        for argument, array in zip((*self.reads, *self.writes), (*inputs, *outputs), strict=True):
            if array is not None and np.may_share_memory(workspace, array):
                raise invalid_argument(
                    f"workspace: expected memory of its own, but it shares some with {argument.name}"
                )

    def run(self, inputs: Arrays, outputs: Arrays, workspace: Bytes | None) -> None:
        """Compute, in the caller's memory alone.

        Args:
            inputs, outputs: Arrays of `reads` and `writes`, checked; None where there is none.
            workspace: At least workspace_bytes; None if that is 0.
        """
        if self.plan is None:
            for argument, output in zip(self.writes, outputs, strict=True):
                if output is not None:
                    output[...] = argument.fill
            return
        if workspace is None:
            self.plan.run(self.plan, (*inputs, *self.numbers), outputs, np.empty(0, np.uint8))
            return
        room = workspace[-address_of(workspace) % ALIGNMENT :] if self.plan_start else workspace
        read = tuple(
            array if argument.stand_in is None or array is None else argument.stand_in.fill(room, array)
            for argument, array in zip(self.reads, inputs, strict=True)
        )
        written = tuple(
            array if argument.stand_in is None else argument.stand_in.array(room)
            for argument, array in zip(self.writes, outputs, strict=True)
        )
        self.plan.run(self.plan, (*read, *self.numbers), written, room[self.plan_start :])
        for argument, result, output in zip(self.writes, written, outputs, strict=True):
            if argument.stand_in is not None and result is not None and output is not None:
                argument.stand_in.deliver(result, output)


def fill_outputs(prototype: Prototype, writes: tuple[Argument, ...]) -> Decision:
    """The decision where there is nothing to compute: each output is filled with its number."""
    return Decision(prototype, (), writes, None)


def plan_call(
    prototype: Prototype,
    reads: tuple[Argument, ...],
    writes: tuple[Argument, ...],
    describe: Callable[[tuple[ArraySpec | None, ...], tuple[ArraySpec | None, ...]], Problem],
    room: Room,
    threads: int,
    numbers: tuple[float, ...] = (),
) -> Decision:
    """Plan a checked call.

    Args:
        prototype: Of the functions that are called.
        reads, writes: Tensors in the core's order.
        describe: The core's problem, from the facts of its inputs and outputs.
        room: What the stand-ins have taken of the workspace.
        threads: How many the core may use.
        numbers: Arguments of the core after its arrays.

    Raises:
        Refused: No backend of the core takes it; ACLNN_ERR_INNER_FIND_KERNEL_ERROR.
    """
    problem = describe(
        tuple(core_facts(argument.facts, argument.stand_in) for argument in reads),
        tuple(core_facts(argument.facts, argument.stand_in) for argument in writes),
    )
    try:
        plan = make_plan(problem, threads=threads)
    except BackendUnavailable as reason:
        raise Refused(aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, str(reason)) from None
    slack = ALIGNMENT if room.used else 0  # lets the workspace begin anywhere
    return Decision(prototype, reads, writes, plan, numbers, room.used, room.used + slack + plan.workspace_bytes)
