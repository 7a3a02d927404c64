"""A decided call: the checks of an operator's row, the core's plan, and what the second phase does once it has memory.

The core computes; copies in the workspace do what CANN's host code does with Cast and ViewCopy, and only where the
core does not read or write a tensor as it is:

- an input gets a float32 copy (a bfloat16 mean of a float16 input);
- an output gets an array in its place, which is rounded once and copied (a float16 gradInputOut of a float32 input; a
  gradWeightOut of shape (1, N); bfloat16 rounded as Atlas A2 rounds it), or copied nowhere (a null meanOutOptional).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lngrad.ascend.acl.enums import aclDataType, aclnnStatus
from lngrad.ascend.acl.interface import StatusError, invalid_argument
from lngrad.ascend.acl.tensor import NUMPY_DTYPES, TensorFacts
from lngrad.ascend.aclnn.operator import FLOAT, FLOATS, Call, Operator
from lngrad.ascend.rounding import round_half_away, rounds_half_away
from lngrad.ascend.soc import Target
from lngrad.core.arrays import ArraySpec, address_of
from lngrad.core.dtypes import contiguous_strides
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import check_memory
from lngrad.errors import BackendUnavailable, OverlapError
from lngrad.typing import Array, Bytes, Dtype, Shape

ALIGNMENT = 64
Arrays = tuple[Array | None, ...]


class Staging(NamedTuple):
    """A contiguous array in the workspace, which the core reads or writes in the place of a tensor.

    Attributes:
        start: Its first byte, counted from the first aligned byte of the workspace.
        shape, dtype: As the core reads or writes it.
        half_away: Whether it is rounded to bfloat16 with ties away from zero, before it is copied.
    """

    start: int
    shape: Shape
    dtype: Dtype
    half_away: bool

    def array(self, workspace: Bytes) -> Array:
        """The array, in a workspace that begins at an aligned byte."""
        return np.ndarray(self.shape, self.dtype, workspace, self.start)

    def fill(self, workspace: Bytes, source: Array) -> Array:
        """Copy an argument to its place. Returns the copy."""
        copy = self.array(workspace)
        np.copyto(copy, source)
        return copy

    def deliver(self, result: Array, output: Array) -> None:
        """Round a result and copy it to the output whose place it took."""
        if self.half_away:
            round_half_away(result)
        with np.errstate(over="ignore", invalid="ignore"):  # too large for float16 is infinity, as in the core
            np.copyto(output, result.reshape(output.shape), casting="unsafe")


class WorkspaceLayout:
    """Gives out places of the workspace."""

    def __init__(self) -> None:
        self.used = 0

    def place(self, shape: Shape, dtype: aclDataType, half_away: bool = False) -> Staging:
        """A place for an array."""
        start, kind = self.used, NUMPY_DTYPES[dtype]
        self.used += -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
        return Staging(start, shape, kind, half_away)

    def input_copy(self, facts: TensorFacts | None, computed: aclDataType) -> Staging | None:
        """A float32 copy of an input; None where the core reads the tensor itself, in the dtype of the computation or
        in float32, or where there is no tensor.
        """
        if facts is None or facts.dtype in (FLOAT, computed):
            return None
        return self.place(facts.shape, FLOAT)

    def output(
        self, facts: TensorFacts | None, shape: Shape, dtypes: tuple[aclDataType, ...], half_away: bool
    ) -> Staging | None:
        """An array for a result; None where the core writes the tensor itself.

        Args:
            facts: Of the tensor; None if the result is copied nowhere.
            shape: What the core writes.
            dtypes: What the core can write it in.
            half_away: Whether bfloat16 is rounded with ties away from zero.
        """
        if facts is None:
            return self.place(shape, FLOAT)
        away = half_away and facts.dtype == aclDataType.ACL_BF16
        if away or facts.dtype not in dtypes:
            return self.place(shape, FLOAT, away)
        return None if facts.shape == shape else self.place(shape, facts.dtype)


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor that the second phase reads or writes.

    Attributes:
        name: As the C prototype spells it.
        core_name: As the core's error texts spell it.
        facts: What phase 2 must find unchanged; None: it was not given, or is not wanted.
        staging: The core's own array in the workspace; None where it works on the tensor itself.
        fill: What an output gets where there is nothing to compute.
    """

    name: str
    core_name: str
    facts: TensorFacts | None
    staging: Staging | None = None
    fill: float = 0.0


@dataclass(frozen=True, eq=False)
class Decision:
    """A decided call.

    Attributes:
        operator: Whose functions were called.
        reads, writes: Tensors in the core's order.
        plan: The core's; None if there is nothing to compute.
        numbers: Arguments of the core after its arrays: the forward's eps.
        plan_start: Where the plan's own workspace begins, after those arrays.
        workspace_bytes: All of it.
    """

    operator: Operator
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    plan: Plan | None
    numbers: tuple[float, ...] = ()
    plan_start: int = 0
    workspace_bytes: int = 0

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What is read, then what is written."""
        return (*self.reads, *self.writes)

    def check_memory(self, inputs: Arrays, outputs: Arrays, workspace: Bytes | None) -> None:
        """Check that no output shares memory with anything else, and the workspace with nothing.

        Raises:
            StatusError: Naming both, as the caller spells them. Nothing was written.
        """
        if self.plan is None:
            return
        try:
            check_memory(self.plan.problem, inputs, outputs)
        except OverlapError as reason:
            names = {argument.core_name: argument.name for argument in self.arguments}
            pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
            text = re.sub(rf"(?<![\w.])({pattern})\b", lambda match: names[match[0]], str(reason))
            raise invalid_argument(text) from None
        if workspace is None:
            return
        for argument, array in zip(self.arguments, (*inputs, *outputs), strict=True):
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
        aligned = workspace[-address_of(workspace) % ALIGNMENT :] if self.plan_start else workspace
        read = tuple(
            array if argument.staging is None or array is None else argument.staging.fill(aligned, array)
            for argument, array in zip(self.reads, inputs, strict=True)
        )
        written = tuple(
            array if argument.staging is None else argument.staging.array(aligned)
            for argument, array in zip(self.writes, outputs, strict=True)
        )
        self.plan.run(self.plan, (*read, *self.numbers), written, aligned[self.plan_start :])
        for argument, result, output in zip(self.writes, written, outputs, strict=True):
            if argument.staging is not None and result is not None and output is not None:
                argument.staging.deliver(result, output)


@lru_cache(maxsize=4096)
def decide(operator: Operator, values: tuple[object, ...], target: Target, threads: int) -> Decision | StatusError:
    """Check a call and plan it: a pure function of facts.

    Args:
        operator: The row.
        values: What `operator.facts_of` says of the arguments.
        target: What is simulated.
        threads: How many the core may use; a plan is made for a number of threads.

    Returns:
        The decision, or the error that phase 1 reports.
    """
    call = Call(operator, values, target)
    try:
        for check in operator.checks:
            check(call)
        return _plan(call, threads)
    except StatusError as error:
        return error.with_traceback(None)  # it is kept, its frames are not


def _plan(call: Call, threads: int) -> Decision:
    operator, x = call.operator, call.x
    wanted = dict(call.wanted(*operator.writes))
    if not wanted or 0 in x.shape:
        # No rows: sums over nothing are 0. No columns: statistics alone are written.
        return Decision(
            operator,
            (),
            tuple(
                Argument(name, output.core_name, wanted.get(name), fill=output.fill)
                for name, output in operator.writes.items()
            ),
            None,
        )
    # All inputs get float32 copies, which are exact, where a result of a 16-bit x is not rounded as the core rounds it.
    # CANN: such a result is rounded to x's dtype before it is cast; here it is rounded once.
    half_away = operator.half_away and rounds_half_away(call.target)
    results = [facts.dtype for name, facts in wanted.items() if operator.writes[name].like == "x"]
    widened = any(dtype != x.dtype or (half_away and dtype == aclDataType.ACL_BF16) for dtype in results)
    computed = FLOAT if widened else x.dtype
    forms = {"x": (x.shape, (computed,)), "columns": (call.trailing, FLOATS), "rows": (call.rows, (computed, FLOAT))}
    layout = WorkspaceLayout()
    reads = tuple(
        Argument(name, core_name, facts, layout.input_copy(facts, computed))
        for name, core_name in operator.reads.items()
        for facts in [call.values[name]]
    )
    writes = tuple(
        Argument(
            name,
            output.core_name,
            facts,
            layout.output(facts, *forms[output.like], half_away) if facts is not None or output.always else None,
        )
        for name, output in operator.writes.items()
        for facts in [wanted.get(name)]
    )
    problem = operator.problem(call, tuple(map(_core_spec, reads)), tuple(map(_core_spec, writes)))
    try:
        plan = make_plan(problem, threads=threads)
    except BackendUnavailable as reason:
        raise StatusError(aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, str(reason)) from None
    slack = ALIGNMENT if layout.used else 0  # lets the workspace begin anywhere
    numbers = tuple(float(call.values[name]) for name in operator.numbers)
    return Decision(operator, reads, writes, plan, numbers, layout.used, layout.used + slack + plan.workspace_bytes)


def _core_spec(argument: Argument) -> ArraySpec | None:
    """What the core sees of an argument: to describe a problem with, before there is data."""
    facts, staging = argument.facts, argument.staging
    if staging is not None:
        strides = contiguous_strides(staging.shape, staging.dtype.itemsize)
        return ArraySpec(staging.shape, staging.dtype.name, strides, "cpu", "numpy")
    if facts is None:
        return None
    dtype = NUMPY_DTYPES[facts.dtype]
    strides = tuple(stride * dtype.itemsize for stride in facts.strides)
    return ArraySpec(facts.shape, dtype.name, strides, "cpu", "numpy")
