"""GPU backend: what is decided about a call. policy.py chooses a regime, run.py launches.

At most two kernels a call, no atomics, no host synchronization, memory from torch's allocator: a call may be captured in a
CUDA graph, after one like it outside the capture, and runs on the current stream of x's device. Under TRITON_INTERPRET=1
plan() takes CPU tensors too, for tests:

    problem, tensors = Problem.backward(dy, x, mean, rstd, gamma)
    dx, dgamma, dbeta = execute(triton_gpu.plan(problem, threads=1), tensors)
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from typing import Any, NamedTuple

import torch
import triton.language as tl

from lngrad.core.arrays import ArraySpec
from lngrad.core.dtypes import ACCUMULATORS, bytes_of, contiguous_strides
from lngrad.core.plan import Plan, run_empty
from lngrad.core.problem import ROLES, Problem, Role
from lngrad.errors import BackendUnavailable
from lngrad.gpu import kernels, policy
from lngrad.gpu.policy import Chunks, Columns, Finalize, Tiles
from lngrad.gpu.run import Steps, backward_columns, backward_tiles, forward_chunks, forward_tiles, parts_size, run
from lngrad.typing import Shape

_ACC = {"float32": tl.float32, "float64": tl.float64}


def plan(problem: Problem, threads: int) -> Plan:
    """Choose the regime; threads are the CPU's, and of no interest here.

    Raises:
        BackendUnavailable: The arrays are NumPy's, or on the CPU without Triton's interpreter; or xhat comes with what it lost,
            which is for columns of longer rows.
    """
    if "lost" in problem.inputs:
        raise BackendUnavailable("backend: triton_gpu takes whole rows, got columns of longer ones")
    if problem.kind != "torch":
        raise BackendUnavailable(f"backend: triton_gpu takes torch tensors, got {problem.kind} arrays")
    if problem.device == "cpu" and not kernels.INTERPRETED:
        raise BackendUnavailable("backend: triton_gpu takes CPU tensors only under TRITON_INTERPRET=1, for tests")
    if problem.M == 0 or problem.N == 0:
        return Plan(problem, "triton_gpu", 0, None, run_empty)
    decide = {"forward": _forward, "backward": _backward}[problem.operator.direction]
    steps, workspace_elements = decide(problem)
    return Plan(problem, "triton_gpu", workspace_elements * bytes_of(problem.accumulator), steps, run)


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


def _forward(problem: Problem) -> tuple[Steps, int]:
    """How a forward is launched, and the elements of its workspace."""
    regime = policy.forward(problem.M, problem.N, _sized_as(problem))
    if isinstance(regime, Tiles):
        return Steps(forward_tiles, regime, *_arguments(problem, regime)), 0
    sums = 2 * regime.chunks * problem.M if regime.spread else 0
    return Steps(forward_chunks, regime, *_arguments(problem, regime)), sums


def _backward(problem: Problem) -> tuple[Steps, int]:
    """The same for a backward."""
    dtype = _sized_as(problem)
    regime = policy.backward(problem.M, problem.N, dtype)
    if isinstance(regime, Columns):
        sums = 2 * regime.sums.slots * problem.M if problem.wanted[0] else 0
        return Steps(backward_columns, regime, *_arguments(problem, regime.sums, regime)), sums
    while regime.stages > 1 and regime.shared_bytes(dtype, "dtotal" in problem.inputs) > _shared_bytes(problem.device):
        regime = replace(regime, stages=regime.stages - 1)
    parts = policy.parts_for(regime, problem.M)
    finalize = policy.finalize_shape(problem.N, dtype) if any(problem.wanted[1:]) else None
    arguments = _arguments(problem, regime, finalize) if finalize else _arguments(problem, regime)
    steps = Steps(backward_tiles, regime, *arguments, parts, finalize)
    return steps, sum(problem.wanted[1:]) * parts_size(problem, parts)


def _arguments(
    problem: Problem, *shapes: Tiles | Chunks | Columns | Finalize
) -> tuple[tuple[dict[str, Any], ...], dict[str, int], frozenset[str]]:
    """Steps.constants of kernels of these shapes, Steps.sizes and Steps.copied."""
    wanted = dict(zip(problem.out, problem.wanted, strict=True))
    specs = {**problem.inputs, **problem.out}
    strides = row_strides(problem, {name: specs[name] for name in problem.operator.tensors if wanted.get(name, True)})
    shared = {
        **{f"WANT_{name.upper()}": wanted.get(name, False) for name in ROLES},
        **{f"HAS_{name.upper()}": problem.inputs.get(name) is not None for name in ROLES},
        **{name.upper(): value for name, value in problem.normalization._asdict().items()},
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    # What a launch takes by name: compile-time arguments of a kernel, as far as it has them, and its warps.
    constants = tuple(
        {**{name.upper(): value for name, value in asdict(shape).items()}, **shared, "warps": shape.warps}
        for shape in shapes
    )
    sizes = {"M": problem.M, "N": problem.N, "inner": strides.inner}
    for name in (name for name, role in ROLES.items() if role is Role.TENSOR):
        sizes[f"{name}_outer"], sizes[f"{name}_inner"] = strides.steps.get(name, (0, 0))
    return constants, sizes, strides.copied


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
    groups = _merge(problem, strides, contiguous, copied)
    if len(groups) > 2:  # rarer than rare: leading axes permuted in three parts
        copied |= {name for name, steps in strides.items() if not _same(steps[:lead], contiguous[:lead], problem.lead)}
        groups = _merge(problem, strides, contiguous, copied)
    (_, outer), (inner, step) = ([(1, (0,) * len(tensors))] * 2 + groups)[-2:]
    split = len(groups) > 1
    if not split:
        inner, outer = 1, (0,) * len(tensors)
    aligned = all(value % 16 == 0 for value in (problem.N, *outer, *step))
    steps = dict(zip(tensors, zip(outer, step, strict=True), strict=True))
    return RowStrides(split, inner, steps, frozenset(copied), aligned)


def _merge(
    problem: Problem, strides: dict[str, Shape], contiguous: Shape, copied: set[str]
) -> list[tuple[int, tuple[int, ...]]]:
    """The leading axes as few (size, strides of all tensors), outermost first."""
    groups: list[tuple[int, tuple[int, ...]]] = []
    for axis in reversed(range(len(problem.lead))):
        size = problem.lead[axis]
        steps = tuple(contiguous[axis] if name in copied else each[axis] for name, each in strides.items())
        if size == 1:
            continue
        if groups and steps == tuple(groups[0][0] * step for step in groups[0][1]):
            groups[0] = (groups[0][0] * size, groups[0][1])
        else:
            groups.insert(0, (size, steps))
    return groups


def _same(steps: Shape, expected: Shape, shape: Shape) -> bool:
    return all(one == other for one, other, size in zip(steps, expected, shape, strict=True) if size > 1)
