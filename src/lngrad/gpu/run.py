"""GPU backend: a plan's launches with the tensors of a call. Every argument goes to a kernel by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lngrad.core.dtypes import bytes_of
from lngrad.core.plan import Plan
from lngrad.core.problem import Problem
from lngrad.gpu import kernels
from lngrad.gpu.launch import launch, on_device
from lngrad.gpu.policy import Chunks, Columns, Finalize, Tiles
from lngrad.gpu.strides import RowStrides
from lngrad.typing import Tensor


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


def parts_size(problem: Problem, parts: int) -> int:
    """Elements of dgamma_parts: whole 256 bytes and more, so that dbeta_parts behind it is aligned as well as it is."""
    return -(-parts * problem.N // 64) * 64


def _vector(array: Tensor | None) -> Tensor | None:
    """One-dimensional and contiguous; gamma and statistics are small, and mostly so already."""
    return None if array is None else array.detach().reshape(-1).contiguous()


def _input(array: Tensor, name: str, strides: RowStrides) -> Tensor:
    array = array.detach()
    return array.contiguous() if name in strides.copied else array


def _target(array: Tensor | None, *, copied: bool) -> Tensor | None:
    """Where a kernel writes to in place of an output: the output itself if it can."""
    if array is None:
        return None
    array = array.detach()
    return torch.empty_like(array, memory_format=torch.contiguous_format) if copied else array


def _targets(plan: Plan, outputs: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
    """Where a kernel writes to, by the results' names."""
    copied = plan.steps.strides.copied
    return {
        name: _target(
            output,
            copied=name in copied or (name not in ("dx", "y") and output is not None and not output.is_contiguous()),
        )
        for name, output in zip(plan.problem.out, outputs, strict=True)
    }


def _deliver(targets: dict[str, Tensor | None], outputs: tuple[Tensor | None, ...]) -> None:
    for target, output in zip(targets.values(), outputs, strict=True):
        if target is not None and output is not None and target.data_ptr() != output.data_ptr():
            output.detach().copy_(target)


def _sizes(plan: Plan) -> dict[str, int]:
    """M, N and the strides of rows."""
    problem, strides = plan.problem, plan.steps.strides
    sizes = {"M": problem.M, "N": problem.N, "inner": strides.inner, "dx_outer": 0, "dx_inner": 0}
    for name, (outer, step) in strides.steps.items():
        sizes[f"{name}_outer"], sizes[f"{name}_inner"] = outer, step
    return sizes


def run_empty(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """No element: sums over nothing are 0, the reciprocal deviation of nothing is not a number."""
    if plan.problem.op == "forward":
        _, mean, rstd = outputs
        mean.zero_()
        rstd.fill_(float("nan"))
        return
    for output in outputs[1:]:
        if output is not None:
            output.detach().zero_()


def _forward_arguments(plan: Plan, inputs: tuple[Any, ...]) -> dict[str, Any]:
    x, gamma, beta, eps = inputs
    tensors = {"x": _input(x, "x", plan.steps.strides), "gamma": _vector(gamma), "beta": _vector(beta)}
    return {**tensors, **_sizes(plan), "eps": eps}


def run_forward_tiles(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Whole rows in registers."""
    steps = plan.steps
    with on_device(inputs[0]):
        targets = _targets(plan, outputs)
        programs = -(-plan.problem.M // steps.regime.rows)
        arguments = {**_forward_arguments(plan, inputs), **targets}
        launch(kernels.forward_tiles, programs, arguments, **steps.constants[0])
        _deliver(targets, outputs)


def run_forward_chunks(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Long rows: one program a row, or, where there are few, statistics of all chunks and then y of all chunks."""
    problem, steps = plan.problem, plan.steps
    constants, chunks = steps.constants[0], steps.regime.chunks
    with on_device(inputs[0]):
        targets = _targets(plan, outputs)
        arguments = {**_forward_arguments(plan, inputs), **targets, "chunks": chunks}
        if steps.regime.spread:
            arguments["sums"] = _elements(workspace, problem)
            launch(kernels.forward_sums, problem.M * chunks, arguments, **constants)
            launch(kernels.forward_columns, problem.M * chunks, arguments, **constants)
        else:
            launch(kernels.forward_chunks, problem.M, arguments, **constants)
        _deliver(targets, outputs)


def _backward_arguments(plan: Plan, inputs: tuple[Any, ...]) -> dict[str, Any]:
    strides = plan.steps.strides
    dy, x, mean, rstd, gamma = inputs
    rows = {"dy": _input(dy, "dy", strides), "x": _input(x, "x", strides)}
    return {**rows, "mean": _vector(mean), "rstd": _vector(rstd), "gamma": _vector(gamma), **_sizes(plan)}


def run_tiles(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Rows shared by programs, then the sum over programs."""
    problem, steps = plan.problem, plan.steps
    with on_device(inputs[1]):
        arguments, targets = _backward_arguments(plan, inputs), _targets(plan, outputs)
        dx = targets["dx"]
        in_place = dx is not None and dx.data_ptr() in (arguments["dy"].data_ptr(), arguments["x"].data_ptr())
        if steps.regime.slabs > 1 and in_place:
            # But half of the row is still to be read by the program that shares it.
            targets["dx"] = torch.empty_like(dx, memory_format=torch.contiguous_format)
            arguments |= {"dx_outer": steps.strides.inner * problem.N, "dx_inner": problem.N}
        arguments["dgamma_parts"], arguments["dbeta_parts"] = _parts(problem, steps.parts, workspace)
        arguments |= targets
        launch(kernels.backward_tiles, steps.parts * steps.regime.slabs, arguments, **steps.constants[0])
        if steps.finalize is not None:
            programs = -(-problem.N // steps.finalize.block)
            launch(kernels.finalize, programs, {**arguments, "P": steps.parts}, **steps.constants[1])
        _deliver(targets, outputs)


def run_columns(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Row sums, of all chunks or whole, then columns."""
    problem, steps = plan.problem, plan.steps
    rule = steps.regime.sums
    with on_device(inputs[1]):
        targets = _targets(plan, outputs)
        arguments = {
            **_backward_arguments(plan, inputs),
            **targets,
            "span": rule.span,
            "slots": rule.slots,
            "sums": None,
        }
        if problem.wanted[0]:
            arguments["sums"] = _elements(workspace, problem)
            launch(kernels.sum_chunks, problem.M * rule.slots, arguments, **steps.constants[0])
        programs = -(-problem.N // steps.regime.block)
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
    elements, size = _elements(workspace, problem), parts_size(problem, parts)
    return elements[:size] if dgamma else None, elements[size * dgamma :][:size] if dbeta else None
