"""GPU backend: what is launched with which arguments; the arithmetic is in kernels/triton_gpu.py, the choice in triton_policy.

At most two kernels a call, no atomics, no host synchronization, memory from torch's allocator: calls may be captured in a
CUDA graph, and run on the current stream of x's device. Under TRITON_INTERPRET=1 plan() takes CPU tensors too, for tests:

    problem, tensors = Problem.backward(dy, x, mean, rstd, gamma)
    dx, dgamma, dbeta = execute(triton_gpu.plan(problem, threads=1), tensors)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl

from lngrad.backends import triton_policy as policy
from lngrad.backends.row_strides import RowStrides, row_strides
from lngrad.backends.triton_policy import Chunks, Columns, Finalize, Tiles
from lngrad.errors import BackendUnavailable
from lngrad.kernels import triton_gpu as kernels
from lngrad.plan import Plan
from lngrad.problem import Problem

__all__ = ["INTERPRETED_MULTIPROCESSORS", "Steps", "plan"]

INTERPRETED_MULTIPROCESSORS = (
    4  # of the device that the interpreter stands for: few, so that small cases reach all regimes
)

_ACC = {"float32": tl.float32, "float64": tl.float64}


@dataclass(frozen=True)
class Steps:
    """What is decided about a call.

    Attributes:
        regime: The launch policy.
        programs: Of the first kernel.
        finalize: How partial sums are added up; None where there are none.
        strides: Of the rows of dy, x, dx, or x, y.
        constants: The compile-time arguments that all kernels of the call share.
    """

    regime: Tiles | Chunks | Columns
    programs: int
    finalize: Finalize | None
    strides: RowStrides
    constants: dict[str, Any]


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
    multiprocessors = _multiprocessors(problem.device)
    regime = policy.choose(problem.M, problem.N, problem.dtype, multiprocessors)
    if problem.op == "forward":
        return _plan_forward(problem, regime.chunk if isinstance(regime, Columns) else regime)
    return _plan_backward(problem, regime, multiprocessors)


@cache
def _multiprocessors(device: str) -> int:
    if device == "cpu":
        return INTERPRETED_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _plan_forward(problem: Problem, regime: Tiles | Chunks) -> Plan:
    strides = row_strides(problem, {"x": problem.inputs["x"], "y": problem.out["y"]})
    constants = {
        "HAS_GAMMA": problem.inputs["gamma"] is not None,
        "HAS_BETA": problem.inputs["beta"] is not None,
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    programs = -(-problem.M // regime.rows)
    return Plan(problem, "triton_gpu", 0, Steps(regime, programs, None, strides, constants), _run_forward)


def _plan_backward(problem: Problem, regime: Tiles | Chunks | Columns, multiprocessors: int) -> Plan:
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
    itemsize = policy.DTYPE_BYTES[problem.accumulator]
    if isinstance(regime, Columns):
        chunks = -(-problem.N // regime.chunk.block)
        steps = Steps(regime, -(-problem.M // regime.chunk.rows) * chunks, None, strides, constants)
        nbytes = 2 * chunks * problem.M * itemsize if problem.wanted[0] else 0
        return Plan(problem, "triton_gpu", nbytes, steps, _run_columns)
    programs = policy.programs_for(regime, problem.M, multiprocessors)
    partial = any(problem.wanted[1:])
    finalize = policy.finalize_shape(problem.N, problem.dtype) if partial else None
    nbytes = sum(problem.wanted[1:]) * programs * problem.N * itemsize
    return Plan(problem, "triton_gpu", nbytes, Steps(regime, programs, finalize, strides, constants), _run_backward)


# --- Running --------------------------------------------------------------------------------------------------------


def _on(tensor: Any) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be x's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _launch(kernel: Any, programs: int, *arguments: Any, warps: int, **constants: Any) -> None:
    kernel[(programs,)](*arguments, **constants, num_warps=warps)


def _shape(regime: Tiles | Chunks | Columns | Finalize) -> dict[str, Any]:
    return {"ROWS": regime.rows, "BLOCK": regime.block, "warps": regime.warps}


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


def _deliver(target: Any, output: Any) -> None:
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


def _run_forward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem, steps = plan.problem, plan.steps
    x, gamma, beta, eps = inputs
    x_rows = _input(x, "x", steps.strides)
    targets = [_target(outputs[0], copied="y" in steps.strides.copied)]
    targets += [_target(output, copied=not output.is_contiguous()) for output in outputs[1:]]
    kernel = kernels.forward_tiles if isinstance(steps.regime, Tiles) else kernels.forward_chunks
    with _on(x):
        _launch(
            kernel, steps.programs, x_rows, _vector(gamma), _vector(beta), *targets, problem.M, problem.N,
            steps.strides.inner, *steps.strides.steps["x"], *steps.strides.steps["y"], eps,
            **steps.constants, **_shape(steps.regime),
        )  # fmt: skip
        for target, output in zip(targets, outputs, strict=True):
            _deliver(target, output)


def _run_backward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Rows shared by programs, then the sum over programs."""
    problem, steps = plan.problem, plan.steps
    arguments, targets, deliver = _arguments(plan, inputs, outputs)
    parts = _parts(problem, steps.programs, workspace)
    kernel = kernels.backward_tiles if isinstance(steps.regime, Tiles) else kernels.backward_chunks
    with _on(inputs[1]):
        _launch(
            kernel, steps.programs, *arguments[:5], targets[0], *parts, *arguments[5:],
            **steps.constants, **_shape(steps.regime), STAGES=steps.regime.stages,
        )  # fmt: skip
        if steps.finalize is not None:
            wanted = {name: steps.constants[name] for name in ("WANT_DGAMMA", "WANT_DBETA", "ACC")}
            _launch(
                kernels.finalize, -(-problem.N // steps.finalize.block), *parts, *targets[1:], steps.programs, problem.N,
                **wanted, **_shape(steps.finalize),
            )  # fmt: skip
        deliver()


def _run_columns(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Row sums of all chunks, then columns."""
    problem, steps = plan.problem, plan.steps
    arguments, targets, deliver = _arguments(plan, inputs, outputs)
    chunk = steps.regime.chunk
    chunks = -(-problem.N // chunk.block)
    with _on(inputs[1]):
        sums = None
        if problem.wanted[0]:
            sums = _elements(workspace, problem)
            constants = {name: steps.constants[name] for name in ("HAS_GAMMA", "SPLIT", "ALIGNED", "ACC")}
            # Behind M, N and inner stand the strides of dy and x; dx has none here.
            _launch(
                kernels.sum_chunks, steps.programs, *arguments[:5], sums, *arguments[5:12], chunks,
                **constants, **_shape(chunk),
            )  # fmt: skip
        _launch(
            kernels.backward_columns, -(-problem.N // steps.regime.block), *arguments[:5], sums, *targets,
            *arguments[5:], chunks, **steps.constants, **_shape(steps.regime),
        )  # fmt: skip
        deliver()


def _arguments(
    plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
) -> tuple[tuple[Any, ...], list[Any], Callable[[], None]]:
    """The kernels' arguments but for outputs and sums, the places they write to, and what delivers those at the end."""
    problem, strides = plan.problem, plan.steps.strides
    dy, x, mean, rstd, gamma = inputs
    rows = _input(dy, "dy", strides), _input(x, "x", strides)
    vectors = _vector(mean), _vector(rstd), _vector(gamma)
    steps = (*strides.steps["dy"], *strides.steps["x"], *strides.steps.get("dx", (0, 0)))
    targets = [_target(outputs[0], copied="dx" in strides.copied)]
    targets += [_target(output, copied=output is not None and not output.is_contiguous()) for output in outputs[1:]]

    def deliver() -> None:
        for target, output in zip(targets, outputs, strict=True):
            _deliver(target, output)

    return (*rows, *vectors, problem.M, problem.N, strides.inner, *steps), targets, deliver


def _elements(workspace: Any, problem: Problem) -> Any:
    """The workspace as numbers of the accumulator's dtype; a caller's own may be longer, or NumPy's on the CPU."""
    if isinstance(workspace, np.ndarray):
        workspace = torch.from_numpy(workspace)
    itemsize = policy.DTYPE_BYTES[problem.accumulator]
    return workspace[: workspace.numel() // itemsize * itemsize].view(getattr(torch, problem.accumulator))


def _parts(problem: Problem, programs: int, workspace: Any) -> tuple[Any, Any]:
    """dgamma_parts and dbeta_parts, None where not wanted."""
    _, dgamma, dbeta = problem.wanted
    if not (dgamma or dbeta):
        return None, None
    elements, size = _elements(workspace, problem), programs * problem.N
    return elements[:size] if dgamma else None, elements[size * dgamma :][:size] if dbeta else None
