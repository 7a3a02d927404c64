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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lngrad.ascend.acl.enums import aclDataType, aclnnStatus
from lngrad.ascend.acl.interface import StatusError, invalid_argument
from lngrad.ascend.acl.tensor import NUMPY_DTYPES, TensorFacts
from lngrad.ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator, Copy
from lngrad.ascend.device.numerics import round_half_away, rounds_half_away
from lngrad.ascend.soc import Target
from lngrad.core.arrays import ArraySpec
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import ROLES, Role, check_memory, same_array, shares_memory
from lngrad.errors import BackendUnavailable, OverlapError
from lngrad.support.addresses import address_of
from lngrad.support.dtypes import contiguous_strides
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


class WorkspaceLayout:
    """Gives out places of the workspace."""

    def __init__(self) -> None:
        self.used = 0

    def place(self, shape: Shape, dtype: aclDataType, half_away: bool = False) -> Staging:
        """A place for an array."""
        start, kind = self.used, NUMPY_DTYPES[dtype]
        self.used += -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
        return Staging(start, shape, kind, half_away)


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
        reads, writes: Tensors in the core's order; then terms and what only copies read; then copies.
        plan: The core's; None if there is nothing to compute.
        numbers: Arguments of the core after its arrays: the forward's eps.
        terms: How many of `reads`, behind the core's own, are added to the core's x before it runs.
        others: How many of the last `reads` only copies read.
        alpha: What x is multiplied with before.
        copies: What the last of `writes` are made of, after the core has run, and a factor.
        plan_start: Where the plan's own workspace begins, after those arrays.
        workspace_bytes: All of it.
    """

    operator: AclnnOperator
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    plan: Plan | None
    numbers: tuple[float, ...] = ()
    terms: int = 0
    others: int = 0
    alpha: float = 1.0
    copies: tuple[tuple[Copy, float], ...] = ()
    plan_start: int = 0
    workspace_bytes: int = 0

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What is read, then what is written."""
        return (*self.reads, *self.writes)

    def check_memory(self, inputs: Arrays, outputs: Arrays, workspace: Bytes | None) -> None:
        """Raise StatusError where an output shares memory with anything else, or the workspace with anything."""
        if self.plan is None:
            return
        try:
            core_inputs = inputs[: len(inputs) - self.terms - self.others]
            check_memory(self.plan.problem, core_inputs, outputs[: len(self.writes) - len(self.copies)])
            if self.terms or self.copies:
                self._check_others(inputs, outputs)
        except OverlapError as reason:
            names = {argument.core_name: argument.name for argument in self.arguments}
            text = re.sub(r"[\w.]*\w", lambda word: names.get(word[0], word[0]), str(reason))
            raise invalid_argument(text) from None
        if workspace is None:
            return
        for argument, array in zip(self.arguments, (*inputs, *outputs), strict=True):
            if array is not None and np.may_share_memory(workspace, array):
                raise invalid_argument(
                    f"workspace: expected memory of its own, but it shares some with {argument.name}"
                )

    def _check_others(self, inputs: Arrays, outputs: Arrays) -> None:
        """What the core does not know: a term may be replaced as a whole, and so may x and dy by a copy."""
        core_inputs, core_outputs = len(inputs) - self.terms - self.others, len(outputs) - len(self.copies)
        others = [*zip(self.reads, inputs, strict=True), *zip(self.writes, outputs, strict=True)]
        for place, (argument, output) in enumerate(zip(self.writes, outputs, strict=True)):
            for number, (other, array) in enumerate(others):
                known = place < core_outputs and (number < core_inputs or number >= len(inputs))
                if known or output is None or array is None or other is argument or not shares_memory(output, array):
                    continue
                replaceable = number < len(inputs) and other.core_name in ("x", "residual", "dy")
                if not (replaceable and same_array(output, array)):
                    raise OverlapError(f"{argument.name}: shares memory with {other.name}")

    def run(self, inputs: Arrays, outputs: Arrays, workspace: Bytes | None) -> None:
        """Compute from and to arrays of `reads` and `writes`, None where there is none, in the caller's memory alone."""
        if self.plan is None:
            for argument, output in zip(self.writes, outputs, strict=True):
                if output is not None:
                    output[...] = argument.fill
            return
        if workspace is None:
            self.plan.run(self.plan, (*inputs, *self.numbers), outputs, np.empty(0, np.uint8))
            return
        aligned = workspace[-address_of(workspace) % ALIGNMENT :] if self.plan_start else workspace
        arrays = [
            array if place is None else np.ndarray(place.shape, place.dtype, aligned, place.start)
            for place, array in zip((one.staging for one in self.arguments), (*inputs, *outputs), strict=True)
        ]
        read, written = tuple(arrays[: len(inputs)]), tuple(arrays[len(inputs) :])
        for copy, array in zip(read, inputs, strict=True):
            if copy is not None and array is not None and copy is not array:
                np.copyto(copy, array)
        if self.terms:
            self._add(read)
        core_inputs = read[: len(read) - self.terms - self.others]
        core_outputs = written[: len(written) - len(self.copies)]
        self.plan.run(self.plan, (*core_inputs, *self.numbers), core_outputs, aligned[self.plan_start :])
        for argument, result, output in zip(self.writes, written, outputs, strict=True):
            if argument.staging is None or result is None or output is None:
                continue
            if argument.staging.half_away:
                round_half_away(result)
            with np.errstate(over="ignore", invalid="ignore"):  # too large for float16 is infinity, as in the core
                np.copyto(output, result.reshape(output.shape), casting="unsafe")
        self._make_copies(inputs, outputs[len(core_outputs) :], arrays)

    def _make_copies(self, inputs: Arrays, outputs: Arrays, arrays: Sequence[Array | None]) -> None:
        """Write what is not the core's own, from what the core read and wrote."""
        named = dict(zip((one.name for one in self.reads), inputs, strict=True))
        for (copy, factor), output in zip(self.copies, outputs, strict=True):
            if output is None:
                continue
            source, others = self._core(copy.source, arrays), [named[name] for name in copy.of]
            if self.operator.last:  # one for each batch: [B…, N] of [B…, S, N]
                others = [
                    np.expand_dims(one, -2) if one is not None and one.ndim == output.ndim - 1 else one
                    for one in others
                ]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                if copy.by is None:
                    np.multiply(source, factor, out=output, dtype=np.float64, casting="unsafe")
                else:
                    _copy_by(copy.by, output, source, others)

    def _core(self, name: str, arrays: Sequence[Array | None]) -> Array:
        """What the core reads or writes under this name; it is there."""
        named = zip(self.arguments, arrays, strict=False)
        return next(array for one, array in named if one.core_name == name and array is not None)

    def _add(self, read: Arrays) -> None:
        """x = alpha·x + the terms, rounded once to float32, in the workspace and block by block."""
        x = self._core("x", read)
        last = len(read) - self.others
        terms = [array for array in read[last - self.terms : last] if array is not None]
        with (
            np.errstate(over="ignore", invalid="ignore"),
            np.nditer(  # type: ignore[call-overload]  # flags are literals in the stub
                [x, *terms],
                flags=["external_loop", "buffered"],
                op_flags=[["readwrite"], *([["readonly"]] * len(terms))],
                op_dtypes=[np.float64] * (1 + len(terms)),
                casting="unsafe",
            ) as blocks,
        ):
            for total, *added in blocks:
                total *= self.alpha
                for one in added:
                    total += one


def _copy_by(by: Callable[..., Array], output: Array, source: Array, others: Sequence[Array | None]) -> None:
    """output = by(source, *others), in float64 and block by block; others are broadcast, and 0 where there is none."""
    operands = [source.reshape(output.shape), *(np.zeros((), np.float64) if one is None else one for one in others)]
    with np.nditer(  # type: ignore[call-overload]  # flags are literals in the stub
        [output, *operands],
        flags=["external_loop", "buffered"],
        op_flags=[["writeonly"], *([["readonly"]] * len(operands))],
        op_dtypes=[np.float64] * (1 + len(operands)),
        casting="unsafe",
    ) as blocks:
        for made, *read in blocks:
            made[...] = by(*read)


@lru_cache(maxsize=4096)
def decide(operator: AclnnOperator, values: tuple[object, ...], target: Target, threads: int) -> Decision | StatusError:
    """Check a call and plan it for a number of threads: a decision, or the error of phase 1. `values`: operator.facts_of()."""
    call = AclnnCall(operator, values, target)
    try:
        for check in operator.checks:
            check(call)
        return _plan(call, threads)
    except StatusError as error:
        return error.with_traceback(None)  # it is kept, its frames are not


def _plan(call: AclnnCall, threads: int) -> Decision:
    operator, x = call.operator, call.x
    wanted = dict(call.wanted(*operator.outputs))
    if not wanted or 0 in x.shape:
        # No rows: sums over nothing are 0. No columns: statistics alone are written.
        outputs = operator.writes.items()
        writes = [Argument(name, one.core_name, wanted.get(name), fill=one.fill) for name, one in outputs]
        copies = [Argument(name, "", wanted.get(name)) for name in operator.copies]
        return Decision(operator, (), (*writes, *copies), None)
    # All inputs get float32 copies, which are exact, where a result of a 16-bit x is not rounded as the core rounds it.
    # CANN: such a result is rounded to x's dtype before it is cast; here it is rounded once.
    half_away = operator.half_away and rounds_half_away(call.target)
    results = [
        facts.dtype
        for name, facts in wanted.items()
        if name not in operator.copies and operator.writes[name].like == "x"
    ]
    widened = any(dtype != x.dtype or (half_away and dtype == aclDataType.ACL_BF16) for dtype in results)
    widened |= bool(operator.terms) or any(copy.source == "out.y" for copy in operator.copies.values())
    computed = FLOAT if widened else x.dtype
    forms = {"x": (x.shape, (computed,)), "columns": (call.trailing, FLOATS), "rows": (call.rows, (computed, FLOAT))}
    layout, reads, writes = WorkspaceLayout(), [], []
    for name, core_name in operator.reads.items():
        facts, staging = call.values[name], None
        if facts is None and ROLES[core_name] is not Role.PARAMETER:
            continue  # the core has an operator without it
        summed = operator.terms and core_name == "x"
        columns = operator.last and ROLES[core_name] is Role.PARAMETER
        shape = call.trailing if columns else facts and facts.shape
        if facts is not None and (summed or facts.dtype not in (FLOAT, computed) or facts.shape != shape):
            staging = layout.place(shape, FLOAT)  # else the core reads the tensor
        reads.append(Argument(name, core_name, facts, staging))
    for name, output in operator.writes.items():
        facts, (shape, dtypes), staging = wanted.get(name), forms[output.like], None
        away = half_away and facts is not None and facts.dtype == aclDataType.ACL_BF16
        if facts is None:  # copied nowhere
            staging = layout.place(shape, FLOAT) if output.always else None
        elif away or facts.dtype not in dtypes:
            staging = layout.place(shape, FLOAT, away)
        elif facts.shape != shape:  # else the core writes the tensor itself
            staging = layout.place(shape, facts.dtype)
        writes.append(Argument(name, output.core_name, facts, staging))
    problem = operator.problem(call, tuple(map(_core_spec, reads)), tuple(map(_core_spec, writes)))
    try:
        plan = make_plan(problem, threads=threads)
    except BackendUnavailable as reason:
        raise StatusError(aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, str(reason)) from None
    slack = ALIGNMENT if layout.used else 0  # lets the workspace begin anywhere
    numbers = tuple(float(call.values[name]) for name in operator.numbers)
    made_of: list[tuple[Copy, float]] = []
    for name, copy in operator.copies.items():
        writes.append(Argument(name, "", wanted.get(name) if call.values.get(copy.when, True) else None))
        made_of.append((copy, float(call.values.get(copy.factor, 1))))
    return Decision(
        operator,
        reads=(
            *reads,
            *(Argument(name, "residual", call.values[name]) for name in operator.terms),
            *(Argument(name, "", call.values[name]) for name in operator.others),
        ),
        writes=tuple(writes),
        plan=plan,
        numbers=numbers,
        terms=len(operator.terms),
        others=len(operator.others),
        alpha=float(call.values.get(operator.alpha, 1)),
        copies=tuple(made_of),
        plan_start=layout.used,
        workspace_bytes=layout.used + slack + plan.workspace_bytes,
    )


def _core_spec(argument: Argument) -> ArraySpec | None:
    """What the core sees of an argument: to describe a problem with, before there is data."""
    facts, staging = argument.facts, argument.staging
    if staging is not None:
        shape, dtype, steps = staging.shape, staging.dtype, contiguous_strides(staging.shape)
    elif facts is not None:
        shape, dtype, steps = facts.shape, NUMPY_DTYPES[facts.dtype], facts.strides
    else:
        return None
    return ArraySpec(shape, dtype.name, tuple(step * dtype.itemsize for step in steps), "cpu", "numpy")
