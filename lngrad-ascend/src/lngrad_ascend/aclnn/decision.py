"""A decided call: the checks of an operator's row, the core's bound call, and what the second phase does once it has memory.

Decisions have a table of their own, by CANN's facts of the arguments: it has status codes too, and copies around the call. What
repeats a call, the plan's run and the addresses that were checked, is core.calls.BoundCall. The core computes; copies in the
workspace do what CANN's host code does with Cast and ViewCopy, only where the core does not read or write a tensor as it is:

- an input gets a float32 copy (a bfloat16 mean of a float16 input);
- an output gets an array in its place, which is rounded once and copied (a float16 gradInputOut of a float32 input; a
  gradWeightOut of shape (1, N); bfloat16 rounded as Atlas A2 rounds it), or copied nowhere (a null meanOutOptional).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.core.arrays import ArraySpec
from lngrad.core.calls import BoundCall
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import ROLES, Problem, Role, check_memory, describe, same_array, shares_memory
from lngrad.errors import BackendUnavailable, OverlapError
from lngrad.support.addresses import address_of
from lngrad.support.bounded_cache import BoundedCache, cached_property
from lngrad.support.dtypes import contiguous_strides
from lngrad.typing import Array, Bytes, Dtype, Shape
from lngrad_ascend.acl.enums import aclDataType, aclnnStatus
from lngrad_ascend.acl.interface import StatusError, invalid_argument
from lngrad_ascend.acl.memory import ALLOCATED, Block, freed
from lngrad_ascend.acl.tensor import NUMPY_DTYPES, TensorFacts
from lngrad_ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator, Copy
from lngrad_ascend.device.numerics import round_half_away, rounds_half_away
from lngrad_ascend.soc import Target

ALIGNMENT = 64
MAX_DECISIONS = 4096
NO_BYTES: Bytes = np.empty(0, np.uint8)
ALWAYS = ("y", "mean", "rstd")  # what the core's forward writes even if nobody asks for it

OrNone: TypeAlias = Sequence[Array | None]
Arrays: TypeAlias = Mapping[str, Array]  # of the tensors of a call, by their names in the prototype


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


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor that the second phase reads or writes, named as in the C prototype, and as in the core's error texts.

    Attributes:
        facts: What phase 2 must find unchanged; None: it was not given, or is not wanted.
        staging: The core's own array in the workspace; None where it works on the tensor itself.
    """

    name: str
    core_name: str
    facts: TensorFacts | None
    staging: Staging | None = None


@dataclass(frozen=True, eq=False)
class Decision:
    """A decided call.

    Attributes:
        reads, writes: The core's tensors, in its order.
        call: The core's, whose places are those of the tensors and the workspace that have passed `check_memory`; None if there
            is nothing to compute.
        terms, alpha: What is added to the core's x before it runs, and what x is multiplied with before.
        others: What only copies read.
        copies, factors: The outputs that are not the core's own, what they are made of, and what each is multiplied with.
        numbers: Arguments of the core after its arrays: the forward's eps.
        plan_start: Where the plan's own workspace begins, after the core's arrays in it.
        workspace_bytes: All of it.
    """

    operator: AclnnOperator
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    call: BoundCall | None
    terms: tuple[Argument, ...] = ()
    others: tuple[Argument, ...] = ()
    copies: tuple[tuple[Argument, Copy], ...] = ()
    numbers: tuple[float, ...] = ()
    alpha: float = 1.0
    factors: tuple[float, ...] = ()
    plan_start: int = 0
    workspace_bytes: int = 0

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that are read, then those that are written."""
        return (*self.reads, *self.terms, *self.others, *self.writes, *(argument for argument, _ in self.copies))

    @cached_property
    def tensors(self) -> list[tuple[str, TensorFacts, int]]:
        """Name, facts, and place in the prototype, of each tensor that the second phase needs."""
        facts = {argument.name: argument.facts for argument in self.arguments if argument.facts is not None}
        return [(name, seen, self.operator.places[name]) for name, seen in facts.items()]

    @cached_property
    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(argument.name for argument in self.reads), tuple(argument.name for argument in self.writes)

    def _core_arrays(self, read: OrNone, written: OrNone) -> dict[str, Any]:
        """Return the arrays that the core reads and writes, by its own names."""
        names = [argument.core_name.removeprefix("out.") for argument in (*self.reads, *self.writes)]
        return dict(zip(names, (*read, *written), strict=True))

    def check_memory(self, problem: Problem, arrays: Arrays, workspace: Bytes | None) -> None:
        """Raise StatusError where an output shares memory with anything else, or the workspace with anything."""
        try:
            read, written = (list(map(arrays.get, names)) for names in self._names)
            check_memory(problem, read, written)
            self._check_others(arrays)
        except OverlapError as reason:
            names = {argument.core_name: argument.name for argument in self.arguments}
            text = re.sub(r"[\w.]*\w", lambda word: names.get(word[0], word[0]), str(reason))
            raise invalid_argument(text) from None
        for name, array in arrays.items():
            if workspace is not None and np.may_share_memory(workspace, array):
                raise invalid_argument(f"workspace: expected memory of its own, but it shares some with {name}")

    def _check_others(self, arrays: Arrays) -> None:
        """Check what the core does not know: an output may replace a term as a whole, and a copy x or dy."""
        copies = [argument for argument, _ in self.copies]
        for output, other in (*product(self.writes, (*self.terms, *self.others)), *product(copies, self.arguments)):
            if output is other or output.facts is None or other.facts is None:
                continue
            pair = arrays[output.name], arrays[other.name]
            if shares_memory(*pair) and not (other.core_name in ("x", "residual", "dy") and same_array(*pair)):
                raise OverlapError(f"{output.name}: shares memory with {other.name}")

    def run(self, arrays: Arrays, workspace: Bytes | None, blocks: Sequence[Block] = ()) -> None:
        """Compute from and to the arrays of `tensors`, in the caller's memory alone. StatusError if a block has been freed."""
        if not all(map(ALLOCATED, blocks)):
            raise freed(self.operator.name)
        if self.call is None:
            for argument in self.arguments:  # no rows: sums are 0; no columns: a row's mean is 0, its rstd NaN
                if argument.facts is not None:
                    arrays[argument.name][...] = math.nan if argument.core_name == "out.rstd" else 0
            return
        memory = NO_BYTES if workspace is None else workspace
        read, written = list(map(arrays.get, self._names[0])), list(map(arrays.get, self._names[1]))
        if self.plan_start:
            memory = memory[-address_of(memory) % ALIGNMENT :]
            self._stage(read, written, memory)
        if self.terms:
            self._add_terms(self._core_arrays(read, written)["x"], arrays)
        self.call.run_arrays((*read, *self.numbers), tuple(written), memory[self.plan_start :])
        if self.plan_start:
            self._write_back(written, arrays)
        if self.copies:
            self._make_copies(read, written, arrays)

    def _stage(self, read: list[Any], written: list[Any], memory: Bytes) -> None:
        """Put the arrays in the workspace in the places of tensors, and copy what is read."""
        for arguments, arrays in ((self.reads, read), (self.writes, written)):
            for place, argument in enumerate(arguments):
                if (staging := argument.staging) is not None:
                    tensor = arrays[place]
                    arrays[place] = np.ndarray(staging.shape, staging.dtype, memory, staging.start)
                    if arrays is read:
                        np.copyto(arrays[place], tensor)

    def _write_back(self, written: OrNone, arrays: Arrays) -> None:
        """Round what the core has written in the workspace to the outputs."""
        for argument, result in zip(self.writes, written, strict=True):
            if argument.staging is None or argument.facts is None or result is None:
                continue
            if argument.staging.half_away:
                round_half_away(result)
            output = arrays[argument.name]
            with np.errstate(over="ignore", invalid="ignore"):  # too large for float16 is infinity, as in the core
                np.copyto(output, result.reshape(output.shape), casting="unsafe")

    def _make_copies(self, read: OrNone, written: OrNone, arrays: Arrays) -> None:
        """Write what is not the core's own, from what the core read and wrote."""
        core = self._core_arrays(read, written)
        for (argument, copy), factor in zip(self.copies, self.factors, strict=True):
            if argument.facts is None:
                continue
            output, source, others = arrays[argument.name], core[copy.source], [arrays.get(name) for name in copy.of]
            if self.operator.last:  # one for each batch: [B…, N] of [B…, S, N]
                others = [
                    np.expand_dims(operand, -2) if operand is not None and operand.ndim == output.ndim - 1 else operand
                    for operand in others
                ]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                if copy.by is None:
                    np.multiply(source, factor, out=output, dtype=np.float64, casting="unsafe")
                    continue
                # In float64 and block by block; others are broadcast, and 0 where there is none.
                operands = (np.zeros((), np.float64) if operand is None else operand for operand in others)
                with _blocks("writeonly", output, source.reshape(output.shape), *operands) as blocks:
                    for block, *parts in blocks:
                        block[...] = copy.by(*parts)

    def _add_terms(self, x: Array, arrays: Arrays) -> None:
        """x = alpha·x + the terms, rounded once to float32, in the workspace and block by block."""
        terms = [arrays[term.name] for term in self.terms if term.facts is not None]
        with np.errstate(over="ignore", invalid="ignore"), _blocks("readwrite", x, *terms) as blocks:
            for total, *added in blocks:
                total *= self.alpha
                for term in added:
                    total += term


def _blocks(mode: str, output: Array, *operands: Array) -> Any:
    """An iterator over blocks of arrays in float64; what is done to the first one's is rounded to its own dtype."""
    return np.nditer(  # type: ignore[call-overload]  # flags are literals in the stub
        [output, *operands],
        flags=["external_loop", "buffered"],
        op_flags=[[mode], *([["readonly"]] * len(operands))],
        op_dtypes=[np.float64] * (1 + len(operands)),
        casting="unsafe",
    )


_decisions: BoundedCache[Hashable, Decision | StatusError] = BoundedCache(MAX_DECISIONS)


def decide(operator: AclnnOperator, values: tuple[object, ...], target: Target, threads: int) -> Decision | StatusError:
    """Check a call and plan it for a number of threads: a decision, or the error of phase 1. `values`: operator.facts_of()."""
    key = operator, values, target, threads
    if decision := _decisions.get(key):
        return decision
    call = AclnnCall(operator, values, target)
    try:
        for check in operator.checks:
            check(call)
        return _decisions.keep(key, _planned(call, threads))
    except StatusError as error:
        return _decisions.keep(key, error.with_traceback(None))  # its frames are not kept


def _planned(call: AclnnCall, threads: int) -> Decision:
    operator, values = call.operator, call.values
    wanted = dict(call.wanted(*operator.outputs))
    copies = tuple(
        (Argument(name, "", wanted.get(name) if values.get(copy.when, True) else None), copy)
        for name, copy in operator.copies.items()
    )
    if not wanted or 0 in call.x.shape:
        writes = tuple(Argument(name, f"out.{core}", wanted.get(name)) for name, core in operator.writes.items())
        all_copies = tuple((Argument(argument.name, "", wanted.get(argument.name)), copy) for argument, copy in copies)
        return Decision(operator, (), writes, None, copies=all_copies)
    staged = _Stages(call, wanted)
    reads, writes = staged.reads(), staged.writes(wanted)
    plan = _core_plan(operator, call.trailing, reads, writes, threads)
    slack = ALIGNMENT if staged.used else 0  # lets the workspace begin anywhere
    return Decision(
        operator,
        reads,
        writes,
        BoundCall(plan, lambda output: None),  # results are the caller's
        terms=tuple(Argument(name, "residual", values[name]) for name in operator.terms),
        others=tuple(Argument(name, "", values[name]) for name in operator.others),
        copies=copies,
        numbers=tuple(float(values[name]) for name in operator.numbers),
        alpha=float(values.get(operator.alpha, 1)),
        factors=tuple(float(values.get(copy.factor, 1)) for _, copy in copies),
        plan_start=staged.used,
        workspace_bytes=staged.used + slack + plan.workspace_bytes,
    )


class _Stages:
    """The tensors that the core reads and writes itself, and the arrays in the workspace in place of the others.

    All inputs get float32 copies, which are exact, where a result of a 16-bit x is not rounded as the core rounds it.
    CANN: such a result is rounded to x's dtype before it is cast; here it is rounded once.
    """

    def __init__(self, call: AclnnCall, wanted: Mapping[str, TensorFacts]):
        operator, x = call.operator, call.x
        self._call, self.used = call, 0
        self._half_away = operator.half_away and rounds_half_away(call.target)
        results = [
            wanted[name] for name, core in operator.writes.items() if ROLES[core] is Role.TENSOR and name in wanted
        ]
        widened = any(facts.dtype != x.dtype or self._rounds_away(facts) for facts in results)
        widened |= bool(operator.terms) or any(copy.source == "y" for copy in operator.copies.values())
        self._computed = FLOAT if widened else x.dtype

    def _rounds_away(self, facts: TensorFacts | None) -> bool:
        return self._half_away and facts is not None and facts.dtype == aclDataType.ACL_BF16

    def _place(self, shape: Shape, dtype: aclDataType, half_away: bool = False) -> Staging:
        """A place for an array in the workspace."""
        start, kind = self.used, NUMPY_DTYPES[dtype]
        self.used += -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
        return Staging(start, shape, kind, half_away)

    def reads(self) -> tuple[Argument, ...]:
        """The core's inputs: the tensor itself in its own dtype or float32, and in its own shape; else a float32 copy."""
        operator, arguments = self._call.operator, []
        for name, core in operator.reads.items():
            facts, staging = self._call.values[name], None
            if facts is None and ROLES[core] is not Role.PARAMETER:
                continue  # the core has an operator without it
            shape = self._call.trailing if operator.last and ROLES[core] is Role.PARAMETER else facts and facts.shape
            summed = operator.terms and core == "x"
            if facts is not None and (summed or facts.dtype not in (FLOAT, self._computed) or facts.shape != shape):
                staging = self._place(shape, FLOAT)
            arguments.append(Argument(name, core, facts, staging))
        return tuple(arguments)

    def writes(self, wanted: Mapping[str, TensorFacts]) -> tuple[Argument, ...]:
        """The core's outputs: the tensor itself where the core rounds to its dtype and has its shape; else an array."""
        return tuple(
            Argument(name, f"out.{core}", wanted.get(name), self._output(core, wanted.get(name)))
            for name, core in self._call.operator.writes.items()
        )

    def _output(self, core: str, facts: TensorFacts | None) -> Staging | None:
        call, computed = self._call, self._computed
        shape, dtypes = {
            Role.TENSOR: (call.x.shape, (computed,)),
            Role.PARAMETER: (call.trailing, FLOATS),
            Role.STATISTIC: (call.rows, (computed, FLOAT)),
        }[ROLES[core]]
        if facts is None:  # copied nowhere
            return self._place(shape, FLOAT) if core in ALWAYS else None
        if self._rounds_away(facts) or facts.dtype not in dtypes:
            return self._place(shape, FLOAT, self._rounds_away(facts))
        return self._place(shape, facts.dtype) if facts.shape != shape else None


def _core_plan(
    operator: AclnnOperator, normalized: Shape, reads: tuple[Argument, ...], writes: tuple[Argument, ...], threads: int
) -> Plan:
    """The core's plan, of the row's operator that reads so many arrays; wanted is what has a place to go."""
    core = next(candidate for candidate in operator.core if len(candidate.inputs) == len(reads))
    inputs, outputs = tuple(map(_core_spec, reads)), tuple(map(_core_spec, writes))
    mask = tuple(spec is not None for spec in outputs)
    problem, _ = describe(core, inputs, normalized, mask, core.results(*outputs), operator.normalization)
    try:
        return make_plan(problem, threads=threads)
    except BackendUnavailable as reason:
        raise StatusError(aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, str(reason)) from None


def _core_spec(argument: Argument) -> ArraySpec | None:
    """Return an argument as the core sees it, to describe a problem before there is data."""
    facts, staging = argument.facts, argument.staging
    if staging is not None:
        shape, dtype, steps = staging.shape, staging.dtype, contiguous_strides(staging.shape)
    elif facts is not None:
        shape, dtype, steps = facts.shape, NUMPY_DTYPES[facts.dtype], facts.strides
    else:
        return None
    return ArraySpec(shape, dtype.name, tuple(step * dtype.itemsize for step in steps), "cpu", "numpy")
