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
from typing import Any

import torch
import triton.language as tl

from lngrad.core.dtypes import ACCUMULATORS, bytes_of
from lngrad.core.plan import Plan
from lngrad.core.problem import Problem
from lngrad.errors import BackendUnavailable
from lngrad.gpu import kernels, policy
from lngrad.gpu.policy import Chunks, Columns, Finalize, Tiles
from lngrad.gpu.run import (
    Steps,
    parts_size,
    run_columns,
    run_empty,
    run_forward_chunks,
    run_forward_tiles,
    run_tiles,
)
from lngrad.gpu.strides import row_strides

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
    return _plan_forward(problem) if problem.op == "forward" else _plan_backward(problem)


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


def _plan_forward(problem: Problem) -> Plan:
    strides = row_strides(problem, {"x": problem.inputs["x"], "y": problem.out["y"]})
    constants = {
        "HAS_GAMMA": problem.inputs["gamma"] is not None,
        "HAS_BETA": problem.inputs["beta"] is not None,
        "SPLIT": strides.split,
        "ALIGNED": strides.aligned,
        "ACC": _ACC[problem.accumulator],
    }
    regime = policy.forward(problem.M, problem.N, _sized_as(problem))
    steps = Steps(regime, 0, None, strides, (_constants(constants, regime),))
    if isinstance(regime, Tiles):
        return Plan(problem, "triton_gpu", 0, steps, run_forward_tiles)
    nbytes = 2 * regime.chunks * problem.M * bytes_of(problem.accumulator) if regime.spread else 0
    return Plan(problem, "triton_gpu", nbytes, steps, run_forward_chunks)


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
    dtype = _sized_as(problem)
    regime = policy.backward(problem.M, problem.N, dtype)
    if isinstance(regime, Columns):
        nbytes = 2 * regime.sums.slots * problem.M * itemsize if problem.wanted[0] else 0
        both = _constants(constants, regime.sums), _constants(constants, regime)
        return Plan(problem, "triton_gpu", nbytes, Steps(regime, 0, None, strides, both), run_columns)
    if regime.shared_bytes(dtype) > _shared_bytes(problem.device):
        regime = replace(regime, stages=1)
    parts = policy.parts_for(regime, problem.M, problem.N, dtype)
    finalize = policy.finalize_shape(problem.N, dtype) if any(problem.wanted[1:]) else None
    nbytes = sum(problem.wanted[1:]) * parts_size(problem, parts) * itemsize
    each = tuple(_constants(constants, shape) for shape in (regime, finalize) if shape is not None)
    return Plan(problem, "triton_gpu", nbytes, Steps(regime, parts, finalize, strides, each), run_tiles)


def _constants(shared: dict[str, Any], shape: Tiles | Chunks | Columns | Finalize) -> dict[str, Any]:
    """What a launch takes by name: compile-time arguments of a kernel, as far as it has them, and its warps."""
    named = {name.upper(): value for name, value in asdict(shape).items()}
    return {**named, **shared, "warps": shape.warps}
