"""GPU backend: what is decided about a call. policy.py chooses a regime, run.py launches.

At most two kernels a call, no atomics, no host synchronization, memory from torch's allocator: a call may be captured in a
CUDA graph, after one like it outside the capture, and runs on the current stream of x's device. Under TRITON_INTERPRET=1
plan() takes CPU tensors too, for tests:

    problem, tensors = Problem.backward(dy, x, mean, rstd, gamma)
    dx, dgamma, dbeta = execute(triton_gpu.plan(problem, threads=1), tensors)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton.language as tl

from lngrad.core.arrays import ArraySpec, merged
from lngrad.core.plan import Plan, Serves, run_empty
from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    ADD_RMS_BACKWARD,
    ADD_RMS_FORWARD,
    BACKWARD,
    FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    ROLES,
    Problem,
    Role,
)
from lngrad.errors import BackendUnavailable
from lngrad.gpu import kernels, policy
from lngrad.gpu.policy import AtOnce, Chunks, Columns, Finalize, Tiles
from lngrad.gpu.run import Launch, Steps, pack, run, signature
from lngrad.support.dtypes import ACCUMULATORS, bytes_of, contiguous_strides
from lngrad.typing import Shape

SERVES = Serves(
    frozenset(
        (FORWARD, BACKWARD, ADD_FORWARD, ADD_BACKWARD, RMS_FORWARD, RMS_BACKWARD, ADD_RMS_FORWARD, ADD_RMS_BACKWARD)
    ),
    switches=frozenset(("centred", "offset", "alpha")),
)

_ACC = {"float32": tl.float32, "float64": tl.float64}


def plan(problem: Problem, threads: int) -> Plan:
    """Choose the regime; threads are the CPU's, and of no interest here.

    Raises:
        BackendUnavailable: The arrays are NumPy's, or on the CPU without Triton's interpreter.
    """
    if problem.kind != "torch":
        raise BackendUnavailable(f"backend: triton_gpu takes torch tensors, got {problem.kind} arrays")
    if problem.device == "cpu" and not kernels.INTERPRETED:
        raise BackendUnavailable("backend: triton_gpu takes CPU tensors only under TRITON_INTERPRET=1, for tests")
    if problem.M == 0 or problem.N == 0:
        return Plan(problem, "triton_gpu", 0, None, run_empty)
    decide = {"forward": _forward, "backward": _backward}[problem.operator.direction]
    steps = decide(problem)
    return Plan(problem, "triton_gpu", sum(size for _, size in steps.pieces), steps, run, pack=pack)


@cache
def _shared_bytes(device: str) -> int:
    """Shared memory that a program may ask for. It decides what is prefetched, and no bit of a result."""
    if device == "cpu":
        return 227 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 << 10))  # ROCm has no such property


def _sized_as(problem: Problem) -> str:
    """The dtype whose shapes of programs fit: x's, unless registers hold float64 for a parameter's sake."""
    return problem.dtype if ACCUMULATORS[problem.dtype] == problem.accumulator else problem.accumulator


class _Kernel(NamedTuple):
    """A launch before it is bound to the facts of its arguments.

    Attributes:
        function: From kernels.py.
        programs: How many.
        shape: Its compile-time arguments, and its warps.
        renamed: Arguments that are given what has another name.
    """

    function: Any
    programs: int
    shape: Tiles | Chunks | Columns | Finalize
    renamed: dict[str, str] = {}  # noqa: RUF012  # never written


def _forward(problem: Problem) -> Steps:
    """The launches of a forward: whole rows; long ones by one program each, or, where there are few, in two kernels."""
    M, regime = problem.M, policy.forward(problem.M, problem.N, _sized_as(problem))
    if isinstance(regime, Tiles):
        return _steps(problem, (_Kernel(kernels.forward_tiles, -(-M // regime.rows), regime),))
    counts = {"chunks": regime.chunks}
    if not regime.spread:
        return _steps(problem, (_Kernel(kernels.forward_chunks, M, regime),), counts)
    # The second kernel normalizes the total that the first has written, where there is one.
    names = ("x", "x_outer", "x_inner") if "residual" in problem.inputs else ()
    renamed = {name: name.replace("x", "total", 1) for name in names}
    launches = (
        _Kernel(kernels.forward_sums, M * regime.chunks, regime),
        _Kernel(kernels.forward_columns, M * regime.chunks, regime, renamed),
    )
    return _steps(problem, launches, counts, {"sums": 2 * regime.chunks * M})


def _backward(problem: Problem) -> Steps:
    """The same for a backward: rows shared by programs, then the sum over programs; or row sums, then columns."""
    M, N, dtype = problem.M, problem.N, _sized_as(problem)
    wanted = problem.wanted
    regime = policy.backward(M, N, dtype)
    if isinstance(regime, Columns):
        sums, columns = regime.sums, _Kernel(kernels.backward_columns, -(-N // regime.block), regime)
        counts = {"span": sums.span, "slots": sums.slots, "first": 0}
        if "dx" not in wanted:
            return _steps(problem, (columns,), counts)
        rows = _Kernel(kernels.sum_chunks, M * sums.slots, sums)
        return _steps(problem, (rows, columns), counts, {"sums": 2 * sums.slots * M})
    if isinstance(regime, AtOnce):
        first = -(-M // regime.rows) if "dx" in wanted else 0
        behind = -(-N // regime.column_block) * (not wanted.isdisjoint(("dgamma", "dbeta")))
        at_once = _Kernel(kernels.backward_at_once, max(1, first + behind), regime)
        return _writable(problem, (at_once,), {"first": first}, {})
    while regime.stages > 1 and regime.shared_bytes(dtype, "dtotal" in problem.inputs) > _shared_bytes(problem.device):
        regime = replace(regime, stages=regime.stages - 1)
    P = policy.parts_for(regime, M)
    launches = [_Kernel(kernels.backward_tiles, P * regime.slabs, regime)]
    parts = {f"{name}_parts": P * N for name in ("dgamma", "dbeta") if name in wanted}
    if parts:
        finalize = policy.finalize_shape(N, dtype)
        launches.append(_Kernel(kernels.finalize, -(-N // finalize.block), finalize))
    if regime.slabs > 1:
        return _writable(problem, launches, {"P": P}, parts)
    return _steps(problem, launches, {"P": P}, parts)


def _writable(problem: Problem, launches: Sequence[_Kernel], counts: dict[str, int], elements: dict[str, int]) -> Steps:
    """Steps whose dx may take the place of dy or x, although other programs may still have to read what is there."""
    steps = _steps(problem, launches, counts, elements)
    if problem.out["dx"] is None:
        return steps
    return replace(steps, apart=_steps(problem, launches, counts, elements, apart=("dx",)))


def _steps(
    problem: Problem, launches: Sequence[_Kernel], counts: dict[str, int] | None = None,
    elements: dict[str, int] | None = None, apart: tuple[str, ...] = (),
) -> Steps:  # fmt: skip
    """Bind launches to the facts of a call.

    Args:
        problem: The call.
        launches: In order.
        counts: Run-time arguments beside M, N and strides.
        elements: By name, how many numbers of the accumulator's dtype a piece of the workspace has.
        apart: Tensors that are written through a contiguous one.
    """
    operator, wanted = problem.operator, problem.wanted
    elements = elements or {}
    specs = {**problem.inputs, **problem.out}
    of_rows = {name: specs[name] for name in operator.tensors if name in problem.inputs or name in wanted}
    strides = row_strides(problem, {name: None if name in apart else spec for name, spec in of_rows.items()})
    copied = (
        strides.copied | set(apart) | {name for name, spec in specs.items() if name not in of_rows and _apart(spec)}
    )
    sizes: dict[str, int | None] = {"M": problem.M, "N": problem.N, "inner": strides.inner, **(counts or {})}
    for name in (name for name, role in ROLES.items() if role is Role.TENSOR):
        sizes[f"{name}_outer"], sizes[f"{name}_inner"] = strides.steps.get(name, (0, 0))
    # A kernel is told of what a call does not have that it is None.
    sizes |= dict.fromkeys(name for name in (*ROLES, *_PIECES) if name not in specs and name not in elements)
    constants = {
        **{f"WANT_{name.upper()}": name in wanted for name in ROLES},
        **{f"HAS_{name.upper()}": problem.inputs.get(name) is not None for name in ROLES},
        **{name.upper(): value for name, value in problem.normalization._asdict().items()},
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    outputs = {name: output and output.dtype for name, output in zip(problem.out, problem.outputs(), strict=True)}
    dtypes = {name: spec and spec.dtype for name, spec in problem.inputs.items()} | outputs
    dtypes |= dict.fromkeys(elements, problem.accumulator)
    names = (*operator.inputs, *operator.outputs, *elements, *operator.numbers, *sizes)
    return Steps(
        tuple(_bound(launch, names, constants, dtypes) for launch in launches),
        tuple((count, -(-count * bytes_of(problem.accumulator) // 256) * 256) for count in elements.values()),
        tuple(sizes.values()),
        frozenset(copied),
    )


_PIECES = ("sums", "dgamma_parts", "dbeta_parts")  # of a workspace


def _bound(launch: _Kernel, names: tuple[str, ...], constants: dict[str, Any], dtypes: dict[str, str | None]) -> Launch:
    """A launch whose arguments are picked out of all values of a call, which have these names."""
    function, shape = launch.function, launch.shape
    constants = {**{name.upper(): value for name, value in asdict(shape).items()}, **constants}
    taken = [launch.renamed.get(name, name) for name in function.arg_names]
    taken = [name for name in taken if name in names]
    constants = {name: constants[name] for name in function.arg_names[len(taken) :]}
    known = signature(function, shape.warps, tuple(map(dtypes.get, taken)), tuple(constants.values()))
    return Launch(function, launch.programs, shape.warps, constants, itemgetter(*map(names.index, taken)), known)


def _apart(spec: ArraySpec | None) -> bool:
    """Whether elements of a small array do not follow one another."""
    return spec is not None and not _same(
        spec.strides, contiguous_strides(spec.shape, bytes_of(spec.dtype)), spec.shape
    )


# --- Row strides that several tensors share: what a kernel needs to address their rows without a copy ---------------


class RowStrides(NamedTuple):
    """Row r begins at (r // inner)·outer + (r % inner)·step elements.

    Attributes:
        split: Whether there are two levels; if not, only step counts.
        inner: Rows of the inner level.
        steps: By name, (outer, step) of each tensor.
        copied: Names of tensors that must be made contiguous first, or be written through a contiguous one.
        aligned: Whether N and all steps are multiples of 16 elements.
    """

    split: bool
    inner: int
    steps: dict[str, tuple[int, int]]
    copied: frozenset[str]
    aligned: bool


def row_strides(problem: Problem, tensors: dict[str, ArraySpec | None]) -> RowStrides:
    """Merge the leading axes of all tensors, as far as all allow.

    Args:
        problem: Their shape.
        tensors: By name; None for one that will be made contiguous.
    """
    contiguous = contiguous_strides((*problem.lead, *problem.normalized_shape))
    strides = {
        name: tuple(step // bytes_of(spec.dtype) for step in spec.strides) if spec else contiguous
        for name, spec in tensors.items()
    }
    lead, columns = len(problem.lead), contiguous_strides(problem.normalized_shape)
    copied = {name for name, steps in strides.items() if not _same(steps[lead:], columns, problem.normalized_shape)}
    groups = _leading(problem, strides, contiguous, copied)
    if len(groups) > 2:  # rarer than rare: leading axes permuted in three parts
        copied |= {name for name, steps in strides.items() if not _same(steps[:lead], contiguous[:lead], problem.lead)}
        groups = _leading(problem, strides, contiguous, copied)
    (_, outer), (inner, step) = ([(1, (0,) * len(tensors))] * 2 + groups)[-2:]
    split = len(groups) > 1
    if not split:
        inner, outer = 1, (0,) * len(tensors)
    aligned = all(value % 16 == 0 for value in (problem.N, *outer, *step))
    steps = dict(zip(tensors, zip(outer, step, strict=True), strict=True))
    return RowStrides(split, inner, steps, frozenset(copied), aligned)


def _leading(
    problem: Problem, strides: dict[str, Shape], contiguous: Shape, copied: set[str]
) -> list[tuple[int, tuple[int, ...]]]:
    """The leading axes as few (size, strides of all tensors)."""
    lead = len(problem.lead)
    return merged(problem.lead, *((contiguous if name in copied else steps)[:lead] for name, steps in strides.items()))


def _same(steps: Shape, expected: Shape, shape: Shape) -> bool:
    return all(step == other for step, other, size in zip(steps, expected, shape, strict=True) if size > 1)
