"""GPU backend: what is launched with which arguments; the arithmetic is in kernels/triton_*.py, the choice in triton_policy.

At most two kernels a call, no atomics, no host synchronization, memory from torch's allocator: a call may be captured in a
CUDA graph, after one like it outside the capture, and runs on the current stream of x's device. Under TRITON_INTERPRET=1
plan() takes CPU tensors too, for tests:

    problem, tensors = Problem.backward(dy, x, mean, rstd, gamma)
    dx, dgamma, dbeta = execute(triton_gpu.plan(problem, threads=1), tensors)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl

import torch
from lngrad.backend.triton_gpu import policy
from lngrad.backend.triton_gpu.launch import launch, on_device
from lngrad.backend.triton_gpu.policy import Chunks, Columns, Finalize, Tiles
from lngrad.backend.triton_gpu.strides import RowStrides, row_strides
from lngrad.dtypes import bytes_of
from lngrad.errors import BackendUnavailable
from lngrad.kernels import triton_gpu as kernels
from lngrad.plan import Plan
from lngrad.problem import Problem

__all__ = ["Steps", "plan"]

_ACC = {"float32": tl.float32, "float64": tl.float64}


@dataclass(frozen=True)
class Steps:
    """What is decided about a call.

    Attributes:
        regime: The launch policy.
        parts: Rows of partial sums.
        finalize: How they are added up; None where there are none.
        strides: Of the rows of dy, x, dx, or x, y.
        constants: Of each kernel that may be launched, in order: its compile-time arguments, and its warps.
    """

    regime: Tiles | Chunks | Columns
    parts: int
    finalize: Finalize | None
    strides: RowStrides
    constants: tuple[dict[str, Any], ...]


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
        return Plan(problem, "triton_gpu", 0, None, _run_empty)
    return _plan_forward(problem) if problem.op == "forward" else _plan_backward(problem)


@cache
def _shared_bytes(device: str) -> int:
    """Shared memory that a program may ask for. It decides what is prefetched, and no bit of a result."""
    if device == "cpu":
        return 227 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 << 10))  # ROCm has no such property


def _plan_forward(problem: Problem) -> Plan:
    strides = row_strides(problem, {"x": problem.inputs["x"], "y": problem.out["y"]})
    constants = {
        "HAS_GAMMA": problem.inputs["gamma"] is not None,
        "HAS_BETA": problem.inputs["beta"] is not None,
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    regime = policy.forward(problem.M, problem.N, problem.dtype)
    steps = Steps(regime, 0, None, strides, (_constants(constants, regime),))
    if isinstance(regime, Tiles):
        return Plan(problem, "triton_gpu", 0, steps, _run_forward_tiles)
    nbytes = 2 * regime.chunks * problem.M * bytes_of(problem.accumulator) if regime.spread else 0
    return Plan(problem, "triton_gpu", nbytes, steps, _run_forward_chunks)


def _plan_backward(problem: Problem) -> Plan:
    names = {"dy": problem.inputs["dy"], "x": problem.inputs["x"]}
    if problem.wanted[0]:
        names["dx"] = problem.out["dx"]
    strides = row_strides(problem, names)
    constants = {
        **dict(zip(("WANT_DX", "WANT_DGAMMA", "WANT_DBETA"), problem.wanted, strict=True)),
        "HAS_GAMMA": problem.inputs["gamma"] is not None,
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    itemsize = bytes_of(problem.accumulator)
    regime = policy.backward(problem.M, problem.N, problem.dtype)
    if isinstance(regime, Columns):
        nbytes = 2 * regime.sums.slots * problem.M * itemsize if problem.wanted[0] else 0
        both = _constants(constants, regime.sums), _constants(constants, regime)
        return Plan(problem, "triton_gpu", nbytes, Steps(regime, 0, None, strides, both), _run_columns)
    if regime.shared_bytes(problem.dtype) > _shared_bytes(problem.device):
        regime = replace(regime, stages=1)
    parts = policy.parts_for(regime, problem.M, problem.N, problem.dtype)
    finalize = policy.finalize_shape(problem.N, problem.dtype) if any(problem.wanted[1:]) else None
    nbytes = sum(problem.wanted[1:]) * _parts_size(problem, parts) * itemsize
    each = tuple(_constants(constants, shape) for shape in (regime, finalize) if shape is not None)
    return Plan(problem, "triton_gpu", nbytes, Steps(regime, parts, finalize, strides, each), _run_tiles)


def _constants(shared: dict[str, Any], shape: Tiles | Chunks | Columns | Finalize) -> dict[str, Any]:
    """What a launch takes by name: compile-time arguments of a kernel, as far as it has them, and its warps."""
    named = {name.upper(): value for name, value in asdict(shape).items()}
    return {**named, **shared, "warps": shape.warps}


def _parts_size(problem: Problem, parts: int) -> int:
    """Elements of dgamma_parts: whole 256 bytes and more, so that dbeta_parts behind it is aligned as well as it is."""
    return -(-parts * problem.N // 64) * 64


# --- Running --------------------------------------------------------------------------------------------------------


def _vector(array: Any) -> Any:
    """One-dimensional and contiguous; gamma and statistics are small, and mostly so already."""
    return None if array is None else array.detach().reshape(-1).contiguous()


def _input(array: Any, name: str, strides: RowStrides) -> Any:
    array = array.detach()
    return array.contiguous() if name in strides.copied else array


def _target(array: Any, *, copied: bool) -> Any:
    """Where a kernel writes to in place of an output: itself if it can."""
    if array is None:
        return None
    array = array.detach()
    return torch.empty_like(array, memory_format=torch.contiguous_format) if copied else array


def _targets(outputs: tuple[Any, ...], *, first_copied: bool) -> list[Any]:
    rest = [_target(output, copied=output is not None and not output.is_contiguous()) for output in outputs[1:]]
    return [_target(outputs[0], copied=first_copied), *rest]


def _deliver(targets: list[Any], outputs: tuple[Any, ...]) -> None:
    for target, output in zip(targets, outputs, strict=True):
        if target is not None and target.data_ptr() != output.data_ptr():
            output.detach().copy_(target)


def _run_empty(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """No element: sums over nothing are 0, the reciprocal deviation of nothing is not a number."""
    if plan.problem.op == "forward":
        _, mean, rstd = outputs
        mean.zero_()
        rstd.fill_(float("nan"))
        return
    for output in outputs[1:]:
        if output is not None:
            output.detach().zero_()


def _forward_arguments(
    plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...], list[Any]]:
    """x; gamma and beta; sizes, strides and eps; the places to write to."""
    problem, strides = plan.problem, plan.steps.strides
    x, gamma, beta, eps = inputs
    sizes = problem.M, problem.N, strides.inner, *strides.steps["x"], *strides.steps["y"], eps
    targets = _targets(outputs, first_copied="y" in strides.copied)
    return _input(x, "x", strides), (_vector(gamma), _vector(beta)), sizes, targets


def _run_forward_tiles(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    steps = plan.steps
    with on_device(inputs[0]):
        x, parameters, sizes, targets = _forward_arguments(plan, inputs, outputs)
        programs = -(-plan.problem.M // steps.regime.rows)
        arguments = x, *parameters, *targets, *sizes
        launch(kernels.forward_tiles, programs, arguments, **steps.constants[0])
        _deliver(targets, outputs)


def _run_forward_chunks(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Long rows: one program a row, or, where there are few, statistics of all chunks and then y of all chunks."""
    problem, steps = plan.problem, plan.steps
    constants, chunks = steps.constants[0], steps.regime.chunks
    with on_device(inputs[0]):
        x, parameters, sizes, targets = _forward_arguments(plan, inputs, outputs)
        if steps.regime.spread:
            sums = _elements(workspace, problem)
            # Behind M, N and inner stand the strides of x; those of y, and eps, the first kernel has no use for.
            launch(kernels.forward_sums, problem.M * chunks, (x, sums, *sizes[:5], chunks), **constants)
            arguments = x, *parameters, sums, *targets, *sizes, chunks
            launch(kernels.forward_columns, problem.M * chunks, arguments, **constants)
        else:
            launch(kernels.forward_chunks, problem.M, (x, *parameters, *targets, *sizes, chunks), **constants)
        _deliver(targets, outputs)


def _backward_arguments(
    plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
    """dy, x, mean, rstd and gamma; sizes and strides; the places to write to."""
    problem, strides = plan.problem, plan.steps.strides
    dy, x, mean, rstd, gamma = inputs
    rows = _input(dy, "dy", strides), _input(x, "x", strides), _vector(mean), _vector(rstd), _vector(gamma)
    steps = (*strides.steps["dy"], *strides.steps["x"], *strides.steps.get("dx", (0, 0)))
    return rows, (problem.M, problem.N, strides.inner, *steps), _targets(outputs, first_copied="dx" in strides.copied)


def _run_tiles(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Rows shared by programs, then the sum over programs."""
    problem, steps = plan.problem, plan.steps
    with on_device(inputs[1]):
        rows, sizes, targets = _backward_arguments(plan, inputs, outputs)
        dx = targets[0]
        if steps.regime.slabs > 1 and dx is not None and dx.data_ptr() in (rows[0].data_ptr(), rows[1].data_ptr()):
            # In place: but a half of the row is still to be read by the program that shares it.
            targets[0] = torch.empty_like(dx, memory_format=torch.contiguous_format)
            sizes = *sizes[:7], sizes[2] * problem.N, problem.N  # its strides are those of a contiguous dx
        parts = _parts(problem, steps.parts, workspace)
        programs = steps.parts * steps.regime.slabs
        arguments = *rows, targets[0], *parts, *sizes
        launch(kernels.backward_tiles, programs, arguments, **steps.constants[0])
        if steps.finalize is not None:
            arguments = *parts, *targets[1:], steps.parts, problem.N
            programs = -(-problem.N // steps.finalize.block)
            launch(kernels.finalize, programs, arguments, **steps.constants[1])
        _deliver(targets, outputs)


def _run_columns(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Row sums, of all chunks or whole, then columns."""
    problem, steps = plan.problem, plan.steps
    rule = steps.regime.sums
    with on_device(inputs[1]):
        rows, sizes, targets = _backward_arguments(plan, inputs, outputs)
        sums = None
        if problem.wanted[0]:
            sums = _elements(workspace, problem)
            # Behind M, N and inner stand the strides of dy and x; dx has none here.
            arguments = *rows, sums, *sizes[:7], rule.span, rule.slots
            launch(kernels.sum_chunks, problem.M * rule.slots, arguments, **steps.constants[0])
        programs = -(-problem.N // steps.regime.block)
        arguments = *rows, sums, *targets, *sizes, rule.slots
        launch(kernels.backward_columns, programs, arguments, **steps.constants[1])
        _deliver(targets, outputs)


def _elements(workspace: Any, problem: Problem) -> Any:
    """The workspace as numbers of the accumulator's dtype; a caller's own may be longer, or NumPy's on the CPU."""
    if isinstance(workspace, np.ndarray):
        workspace = torch.from_numpy(workspace)
    itemsize = bytes_of(problem.accumulator)
    return workspace[: workspace.numel() // itemsize * itemsize].view(getattr(torch, problem.accumulator))


def _parts(problem: Problem, parts: int, workspace: Any) -> tuple[Any, Any]:
    """dgamma_parts and dbeta_parts, None where not wanted."""
    _, dgamma, dbeta = problem.wanted
    if not (dgamma or dbeta):
        return None, None
    elements, size = _elements(workspace, problem), _parts_size(problem, parts)
    return elements[:size] if dgamma else None, elements[size * dgamma :][:size] if dbeta else None
