"""GPU backend: a plan's launches with the tensors of a call, on the current stream of a device.

Every argument goes to a kernel by its name. `kernel[grid](...)` binds, specializes and hashes all arguments each time. What it
returns, the compiled kernel, can be launched with a grid too, as `warmup` is used in Triton's own tutorials; it is kept here by
all that the specialization depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.dtypes import bytes_of
from lngrad.core.plan import Plan
from lngrad.core.problem import ROLES, Problem
from lngrad.gpu import kernels
from lngrad.gpu.policy import Chunks, Columns, Finalize, Tiles
from lngrad.typing import Tensor

_Arguments: TypeAlias = dict[str, Any]  # of kernels at run time, by their names


@dataclass(frozen=True)
class Steps:
    """What is decided about a call.

    Attributes:
        launches: (plan, arguments, workspace): launches the kernels.
        regime: The launch policy.
        constants: Of each kernel that may be launched, in order: its compile-time arguments, and its warps.
        sizes: M, N and the strides of rows, as kernels name them.
        copied: Names of tensors that are made contiguous first, or written through a contiguous one.
        parts: Rows of partial sums.
        finalize: How they are added up; None where there are none.
    """

    launches: Callable[[Plan, _Arguments, Tensor], None]
    regime: Tiles | Chunks | Columns
    constants: tuple[dict[str, Any], ...]
    sizes: dict[str, int]
    copied: frozenset[str]
    parts: int = 0
    finalize: Finalize | None = None


def run(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Compute every wanted output."""
    operator, steps = plan.problem.operator, plan.steps
    with on_device(inputs[0]):
        arguments = {
            **dict.fromkeys(ROLES),
            **steps.sizes,
        }  # a kernel is told of what a norm does not have that it is None
        for name, array in zip(operator.inputs, inputs, strict=False):
            arguments[name] = _rows(array, name in steps.copied) if name in operator.tensors else _vector(array)
        arguments.update(zip(operator.numbers, inputs[len(operator.inputs) :], strict=True))
        for name, output in zip(operator.outputs, outputs, strict=True):
            arguments[name] = _target(output, name in steps.copied, name in operator.tensors)
        steps.launches(plan, arguments, workspace)
        for name, output in zip(operator.outputs, outputs, strict=True):
            target = arguments[name]
            if target is not None and target.data_ptr() != output.data_ptr():
                output.detach().copy_(target)


def _rows(array: Tensor, copied: bool) -> Tensor:
    array = array.detach()
    return array.contiguous() if copied else array


def _vector(array: Tensor | None) -> Tensor | None:
    """One-dimensional and contiguous; gamma and statistics are small, and mostly so already."""
    return None if array is None else array.detach().reshape(-1).contiguous()


def _target(output: Tensor | None, copied: bool, of_rows: bool) -> Tensor | None:
    """Where a kernel writes to in place of an output: the output itself if it can."""
    if output is None:
        return None
    output = output.detach()
    if copied or not (of_rows or output.is_contiguous()):
        return torch.empty_like(output, memory_format=torch.contiguous_format)
    return output


def forward_tiles(plan: Plan, arguments: _Arguments, workspace: Tensor) -> None:
    """Whole rows in registers."""
    steps = plan.steps
    launch(kernels.forward_tiles, -(-plan.problem.M // steps.regime.rows), arguments, **steps.constants[0])


def forward_chunks(plan: Plan, arguments: _Arguments, workspace: Tensor) -> None:
    """Long rows: one program a row, or, where there are few, statistics of all chunks and then y of all chunks."""
    problem, regime, (constants,) = plan.problem, plan.steps.regime, plan.steps.constants
    arguments["chunks"] = regime.chunks
    if regime.spread:
        arguments["sums"] = _elements(workspace, problem)
        launch(kernels.forward_sums, problem.M * regime.chunks, arguments, **constants)
        if arguments["total"] is not None:  # which has been written by then
            arguments |= {
                name.replace("total", "x"): arguments[name] for name in ("total", "total_outer", "total_inner")
            }
        launch(kernels.forward_columns, problem.M * regime.chunks, arguments, **constants)
    else:
        launch(kernels.forward_chunks, problem.M, arguments, **constants)


def backward_tiles(plan: Plan, arguments: _Arguments, workspace: Tensor) -> None:
    """Rows shared by programs, then the sum over programs."""
    problem, steps, dx = plan.problem, plan.steps, arguments["dx"]
    in_place = dx is not None and dx.data_ptr() in (arguments["dy"].data_ptr(), arguments["x"].data_ptr())
    if steps.regime.slabs > 1 and in_place:
        # But half of the row is still to be read by the program that shares it.
        arguments["dx"] = torch.empty_like(dx, memory_format=torch.contiguous_format)
        arguments |= {"dx_outer": arguments["inner"] * problem.N, "dx_inner": problem.N}
    arguments["dgamma_parts"], arguments["dbeta_parts"] = _parts(problem, steps.parts, workspace)
    launch(kernels.backward_tiles, steps.parts * steps.regime.slabs, arguments, **steps.constants[0])
    if steps.finalize is not None:
        arguments["P"] = steps.parts
        launch(kernels.finalize, -(-problem.N // steps.finalize.block), arguments, **steps.constants[1])


def backward_columns(plan: Plan, arguments: _Arguments, workspace: Tensor) -> None:
    """Row sums, of all chunks or whole, then columns."""
    problem, regime, constants = plan.problem, plan.steps.regime, plan.steps.constants
    arguments |= {"span": regime.sums.span, "slots": regime.sums.slots, "sums": None}
    if arguments["dx"] is not None:
        arguments["sums"] = _elements(workspace, problem)
        launch(kernels.sum_chunks, problem.M * regime.sums.slots, arguments, **constants[0])
    launch(kernels.backward_columns, -(-problem.N // regime.block), arguments, **constants[1])


def _elements(workspace: Any, problem: Problem) -> Any:
    """The workspace as numbers of the accumulator's dtype; a caller's own may be longer, or NumPy's on the CPU."""
    if isinstance(workspace, np.ndarray):
        workspace = torch.from_numpy(workspace)
    itemsize = bytes_of(problem.accumulator)
    return workspace[: workspace.numel() // itemsize * itemsize].view(getattr(torch, problem.accumulator))


def parts_size(problem: Problem, parts: int) -> int:
    """Elements of dgamma_parts: whole 256 bytes and more, so that dbeta_parts behind it is aligned as well as it is."""
    return -(-parts * problem.N // 64) * 64


def _parts(problem: Problem, parts: int, workspace: Any) -> tuple[Any, Any]:
    """dgamma_parts and dbeta_parts, None where not wanted."""
    wanted = dict(zip(problem.out, problem.wanted, strict=True))
    dgamma, dbeta = wanted["dgamma"], wanted.get("dbeta", False)
    if not (dgamma or dbeta):
        return None, None
    elements, size = _elements(workspace, problem), parts_size(problem, parts)
    return elements[:size] if dgamma else None, elements[size * dgamma :][:size] if dbeta else None


# --- One launch -----------------------------------------------------------------------------------------------------

_MOST = 4096  # compiled kernels that are remembered
_compiled: BoundedCache[Hashable, tuple[Any, tuple[Any, ...]]] = BoundedCache(_MOST)


def on_device(tensor: Any) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(kernel: Any, programs: int, named: Mapping[str, Any], warps: int, **constants: Any) -> None:
    """Launch a kernel.

    Args:
        kernel: From kernels.py, whose whole numbers are annotated or not specialized.
        programs: How many; the grid has one axis.
        named: Its run-time arguments; those that it does not have are passed over.
        warps: 32 threads each, of a program.
        constants: Its compile-time arguments; those that it does not have are passed over.
    """
    arguments = tuple([named[name] for name in kernel.arg_names if name in named])
    constants = {name: constants[name] for name in kernel.arg_names[len(arguments) :]}
    if kernels.INTERPRETED:
        kernel[(programs,)](*arguments, **constants)
        return
    device = torch.cuda.current_device()
    key = kernel, device, warps, tuple(map(_specialized, arguments)), tuple(constants.values())
    # On ROCm a kernel also depends on whether a tensor's storage is below 2 GB; there Triton looks it up itself.
    known = _compiled.get(key) if torch.version.hip is None else None
    if known is None:
        # Said here, since Triton's default for the fusion of products and sums is about to change, and with it all bits.
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps, enable_fp_fusion=True)
        _compiled.keep(key, (compiled, tuple(constants.values())))
        return
    compiled, tail = known
    compiled[(programs, 1, 1)](*arguments, *tail)


def _specialized(argument: Any) -> Any:
    """What Triton compiles into a kernel: a tensor's dtype and whether it lies on 16 bytes; that there is no tensor."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument is None
