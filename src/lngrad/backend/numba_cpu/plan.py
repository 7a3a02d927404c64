"""CPU backend: compiled kernels, all cores, any strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lngrad.arrays import Facts, address_of
from lngrad.backend.numba_cpu.workers import new_job, run_job
from lngrad.backend.numba_cpu.workspace import Copy, Layout, Places
from lngrad.column_tree import CHUNK
from lngrad.dtypes import bytes_of
from lngrad.kernels.numba_cpu.backward import DBETA, DGAMMA, DX
from lngrad.kernels.numba_cpu.pool import ARGUMENTS, TASKS, TICKET
from lngrad.kernels.numba_cpu.simd import LANES
from lngrad.kernels.numba_cpu.sweeps import SEGMENT, SHORT
from lngrad.kernels.numba_cpu.tasks import task_function
from lngrad.plan import Plan
from lngrad.problem import Problem

__all__ = ["plan"]

TASKS_PER_THREAD = 8  # enough for balance; more would only add partial sums
TASK_ELEMENTS = 1 << 13  # below, drawing a ticket costs more than it shares out
STREAM_BYTES = 8 << 20  # from here on dx and y go past the caches: before they are read again they would be evicted
GROUP_BYTES = 4 << 20  # rows of dy and x that stay in the last-level cache between their sums and their columns
SCRATCH_BYTES = 1 << 18  # of packed rows per tensor and thread: half of a common second-level cache
COMBINE_ELEMENTS = 1 << 16  # of partial sums that one combine task adds up

# Where the fields of kernels.numba_backward.Backward begin in a job: addresses, then sizes.
_FIRST, _ADDRESSES, _SIZES = ARGUMENTS, 9, 15
_COMBINE = 7  # fields of kernels.numba_backward.Combine
COMBINE_AT = _FIRST + _ADDRESSES + _SIZES  # where the first combining job begins, behind the main one
SLOTS_AT, EPS_AT = _FIRST + 6, _FIRST + 16


@dataclass(frozen=True, eq=False)
class Steps:
    """How a problem is cut.

    Attributes:
        threads: At most this many.
        jobs: The main job and the combining jobs behind each other: all is in them but the addresses.
        tasks: Of the main job.
        function: Address of the main task function.
        sums_function: For wide rows, the function for the row sums that go before; else 0.
        group_rows: For wide rows, how many have their sums and columns done together; else 0.
        elements: That the main job goes through.
        slots: Offset in the workspace of the partial sums.
        copies: Small arrays that pass through the workspace.
        packs: Whether a tensor has no plain row stride and passes through scratch.
        combine: For each combining job, which of dgamma and dbeta it rounds; two jobs only if their dtypes differ.
        combine_tasks, combine_elements: Tasks and elements of a combining job.
        places: Offsets in the workspace of what lies there, by name.
        stream: Whether dx or y goes past the caches, if its address allows.
    """

    threads: int
    jobs: np.ndarray[Any, np.dtype[np.int64]]
    tasks: int
    elements: int
    slots: int = 0
    copies: tuple[Copy, ...] = ()
    packs: bool = False
    function: int = 0
    sums_function: int = 0
    group_rows: int = 0
    combine: tuple[tuple[bool, bool], ...] = ()
    combine_tasks: int = 0
    combine_elements: int = 0
    places: dict[str, int] = field(default_factory=dict)
    stream: bool = False


def plan(problem: Problem, threads: int) -> Plan:
    """Cut a problem for `threads` threads."""
    if problem.M == 0 or problem.N == 0 or not any(problem.wanted):
        return Plan(problem, "numba_cpu", 0, None, _run_empty)
    if problem.op == "forward":
        return _plan_forward(problem, threads)
    return _plan_backward(problem, threads)


# --- Deciding -------------------------------------------------------------------------------------------------------


def row_stride(facts: Facts, normalized: int) -> int | None:
    """Bytes from row to row of a tensor whose last `normalized` dimensions are contiguous, or None if it has no one step."""
    itemsize = bytes_of(facts.dtype)
    dims = list(zip(facts.shape, facts.strides, strict=True))
    lead, last = dims[: len(dims) - normalized], dims[len(dims) - normalized :]
    if _common_step(last, itemsize) != itemsize:
        return None
    step = _common_step(lead, math.prod(size for size, _ in last) * itemsize)
    return step if step is not None and step % itemsize == 0 else None


def _common_step(dims: list[tuple[int, int]], default: int) -> int | None:
    """The step of dimensions (size, stride) walked as one, default where there is nothing to walk, None if uneven."""
    step: int | None = None
    extent = 0
    for size, stride in reversed([dim for dim in dims if dim[0] != 1]):
        if step is None:
            step = stride
        elif stride != extent:
            return None
        extent = stride * size
    return default if step is None else step


def _wants(problem: Problem) -> int:
    return sum(bit for bit, wanted in zip((DX, DGAMMA, DBETA), problem.wanted, strict=True) if wanted)


def _streams(problem: Problem, stride: int | None) -> bool:
    """Whether a full output should go past the caches; every row must begin where a streaming store may."""
    itemsize = bytes_of(problem.dtype)
    large = problem.M * problem.N * itemsize >= STREAM_BYTES
    return large and problem.N >= LANES and stride is not None and stride % stream_alignment(problem) == 0


def stream_alignment(problem: Problem) -> int:
    return min(LANES * bytes_of(problem.dtype), 32)


def _strides_and_tables(problem: Problem, names: tuple[str, ...], layout: Layout) -> tuple[list[int], list[bool], int]:
    """Row strides, whether each tensor needs a table instead, and how many rows are packed at a time."""
    strides, tabled = [], []
    for name in names:
        facts = problem.inputs.get(name) or problem.out.get(name)
        row_bytes = problem.N * bytes_of(problem.dtype)
        step = row_bytes if facts is None else row_stride(facts, len(problem.normalized_shape))
        strides.append(step or 0)
        tabled.append(step is None)
        if step is None:
            layout.add(f"{name}_table", 8 * (problem.M + problem.N))
    block_rows = max(1, min(CHUNK, SCRATCH_BYTES // (problem.N * bytes_of(problem.dtype))))
    return strides, tabled, block_rows


def _copies(problem: Problem, layout: Layout) -> tuple[Copy, ...]:
    """Small arrays that the kernels want contiguous and in a certain dtype, and that are not."""
    elements = {"mean": problem.M, "rstd": problem.M}
    wanted = [
        Copy(name, elements.get(name, problem.N), problem.accumulator, 0.0 if name == "beta" else 1.0)
        for name in ("mean", "rstd", "gamma", "beta")
        if name in problem.inputs and not is_ready(problem.inputs[name], problem.accumulator)
    ]
    for name, facts in problem.out.items():
        if facts is not None and name not in ("dx", "y"):
            dtype = facts.dtype if problem.op == "backward" else problem.accumulator
            if not is_ready(facts, dtype):
                wanted.append(Copy(name, elements.get(name, problem.N), dtype))
    for copy in wanted:
        layout.add(copy.name, copy.elements * bytes_of(copy.dtype))
    return tuple(wanted)


def is_ready(facts: Facts | None, dtype: str) -> bool:
    """Whether an array is there, contiguous and of this dtype."""
    if facts is None or facts.dtype != dtype:
        return False
    itemsize = bytes_of(dtype)
    return _common_step(list(zip(facts.shape, facts.strides, strict=True)), itemsize) == itemsize


def _plan_forward(problem: Problem, threads: int) -> Plan:
    layout = Layout()
    copies = _copies(problem, layout)
    (x_stride, y_stride), tabled, block_rows = _strides_and_tables(problem, ("x", "y"), layout)
    if any(tabled):
        layout.add("scratch", threads * 2 * block_rows * problem.N * bytes_of(problem.dtype))
    rows_per_task = max(1, problem.M // (TASKS_PER_THREAD * threads), TASK_ELEMENTS // problem.N)
    sizes = (problem.M, problem.N, x_stride, y_stride, 0, 0, 0, rows_per_task, block_rows, 0)
    function = task_function("forward_rows", problem.dtype, problem.accumulator)
    tasks = -(-problem.M // rows_per_task)
    steps = Steps(
        threads=threads,
        jobs=new_job(function, tasks, (*(0,) * 7, *sizes)),
        tasks=tasks,
        elements=problem.M * problem.N,
        copies=copies,
        places=layout.places,
        stream=_streams(problem, None if tabled[1] else y_stride),
    )
    return Plan(problem, "numba_cpu", layout.nbytes, steps, _run_forward)


def _plan_backward(problem: Problem, threads: int) -> Plan:
    layout = Layout()
    M, N = problem.M, problem.N
    wants = _wants(problem)
    accumulator_bytes = bytes_of(problem.accumulator)
    strides, tabled, block_rows = _strides_and_tables(problem, ("dy", "x", "dx"), layout)
    copies = _copies(problem, layout)
    if any(tabled):
        layout.add("scratch", threads * 3 * block_rows * N * bytes_of(problem.dtype))

    chunks = -(-M // CHUNK)
    wide = wants & DX and not any(tabled) and N >= 2 * SEGMENT and chunks < 2 * threads
    if wide:
        row_bytes = 2 * N * bytes_of(problem.dtype)
        group_rows = 1 << max(0, min(CHUNK, GROUP_BYTES // row_bytes).bit_length() - 1)
        layout.add("row_sums", 2 * group_rows * (N // SEGMENT) * accumulator_bytes)
        tasks, chunks_per_task, slots, parts = N // SEGMENT, 1, chunks.bit_length() + 1, 1
    else:
        group_rows = 0
        chunks_per_task = 1
        while chunks_per_task < chunks and (
            chunks_per_task * CHUNK * N < TASK_ELEMENTS or -(-chunks // chunks_per_task) > TASKS_PER_THREAD * threads
        ):
            chunks_per_task *= 2
        tasks = parts = -(-chunks // chunks_per_task)
        slots = chunks_per_task.bit_length()
    slot_bytes = 2 * N * (1 if N >= LANES else LANES) * accumulator_bytes
    if wants & (DGAMMA | DBETA) or N < LANES:  # tiny rows have one kernel for every mask, which clears its slots anyway
        layout.add("slots", (slots if wide else tasks * slots) * slot_bytes)

    def function(name: str) -> int:
        return task_function(name, problem.dtype, problem.accumulator)

    how = wants if N < LANES else 0  # tiny rows are told what is wanted; the others, in run, whether to stream
    sizes = (M, N, *strides, 0, 0, 0, wants, how, chunks_per_task, slots, block_rows, 0, M)
    main = function(_main_task(wants, N, bool(wide)))
    columns = max(LANES, COMBINE_ELEMENTS // (2 * parts))
    combine, jobs = [], [new_job(main, tasks, (*(0,) * _ADDRESSES, *sizes))]
    _, dgamma, dbeta = problem.outputs()
    for dtype in dict.fromkeys(output.dtype for output in (dgamma, dbeta) if output is not None):
        combine.append((dgamma is not None and dgamma.dtype == dtype, dbeta is not None and dbeta.dtype == dtype))
        rounding = task_function("combine", dtype, problem.accumulator)
        jobs.append(new_job(rounding, -(-N // columns), (0, 0, 0, slots * slot_bytes, parts, N, columns)))
    steps = Steps(
        threads=threads,
        jobs=np.concatenate(jobs),
        tasks=tasks,
        elements=M * N,
        slots=layout.places.get("slots", 0),
        copies=copies,
        packs=any(tabled),
        function=main,
        sums_function=function("segment_sums") if wide else 0,
        group_rows=group_rows,
        combine=tuple(combine),
        combine_tasks=-(-N // columns),
        combine_elements=2 * parts * N,
        places=layout.places,
        stream=bool(wants & DX) and _streams(problem, None if tabled[2] else strides[2]),
    )
    return Plan(problem, "numba_cpu", layout.nbytes, steps, _run_backward)


def _main_task(wants: int, N: int, wide: bool) -> str:
    """The name of the main task function."""
    parameters = wants & (DGAMMA | DBETA)
    if wide:
        return "columns" if parameters else "columns_dx"
    if N < LANES:
        return "tiny_rows"
    if not wants & DX:
        return "rows_dbeta" if wants == DBETA else "rows_sums"
    if not parameters:
        return "rows_dx"
    return "short_rows" if N <= SHORT else "rows"


# --- Running --------------------------------------------------------------------------------------------------------


def _run_empty(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    """Nothing to add up. No rows: sums are 0. No columns: a mean is 0 and its rstd NaN, as torch has it."""
    for name, output in zip(plan.problem.out, outputs, strict=True):
        if output is not None:
            output[...] = math.nan if name == "rstd" else 0


def _run_forward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem, steps = plan.problem, plan.steps
    *arrays, eps = inputs
    x, gamma, beta = arrays
    y, mean, rstd = outputs
    place = Places(workspace, steps.places)
    sources = {"x": x, "gamma": gamma, "beta": beta}
    at = {name: 0 if array is None else address_of(array) for name, array in sources.items()}
    at.update({name: address_of(array) for name, array in (("mean", mean), ("rstd", rstd))})
    for copy in steps.copies:
        at[copy.name] = place.fill(copy, sources[copy.name]) if copy.name in sources else place.of(copy.name)
    job = steps.jobs.copy()
    job[_FIRST : _FIRST + 7] = (
        at["x"],
        address_of(y),
        at["mean"],
        at["rstd"],
        at["gamma"],
        at["beta"],
        place.of("scratch"),
    )
    if "scratch" in steps.places:
        job[_FIRST + 11 : _FIRST + 13] = place.table("x", x, problem), place.table("y", y, problem)
    if steps.stream:
        job[_FIRST + 13] = address_of(y) % stream_alignment(problem) == 0
    job[EPS_AT] = np.float64(eps).view(np.int64)
    run_job(address_of(job), steps.tasks, problem.M * problem.N, steps.threads)
    for copy in steps.copies:
        if copy.name not in sources:
            place.deliver(copy, {"mean": mean, "rstd": rstd}[copy.name])


def _run_backward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem, steps = plan.problem, plan.steps
    dy, x, mean, rstd, gamma = inputs
    dx, dgamma, dbeta = outputs
    place = Places(workspace, steps.places)
    mean_at, rstd_at = address_of(mean), address_of(rstd)
    gamma_at = 0 if gamma is None else address_of(gamma)
    dgamma_at = 0 if dgamma is None else address_of(dgamma)
    dbeta_at = 0 if dbeta is None else address_of(dbeta)
    for copy in steps.copies:
        match copy.name:
            case "mean":
                mean_at = place.fill(copy, mean)
            case "rstd":
                rstd_at = place.fill(copy, rstd)
            case "gamma":
                gamma_at = place.fill(copy, gamma)
            case "dgamma":
                dgamma_at = place.of("dgamma")
            case "dbeta":
                dbeta_at = place.of("dbeta")
    job = steps.jobs.copy()
    address, slots_at = address_of(job), place.start + steps.slots
    dx_at = 0 if dx is None else address_of(dx)
    job[_FIRST : _FIRST + 7] = address_of(dy), address_of(x), dx_at, mean_at, rstd_at, gamma_at, slots_at
    if steps.packs:
        job[_FIRST + 7] = place.of("scratch")
        job[_FIRST + 14 : _FIRST + 17] = [place.table(n, a, problem) for n, a in (("dy", dy), ("x", x), ("dx", dx))]
    if steps.stream:
        job[_FIRST + 18] = dx_at % stream_alignment(problem) == 0
    if steps.group_rows:
        job[_FIRST + 8] = place.of("row_sums")
        _run_groups(problem, steps, job, address)
    else:
        run_job(address, steps.tasks, steps.elements, steps.threads)
    at = COMBINE_AT
    for takes_dgamma, takes_dbeta in steps.combine:
        job[at + _FIRST : at + _FIRST + 3] = slots_at, dgamma_at if takes_dgamma else 0, dbeta_at if takes_dbeta else 0
        run_job(address + 8 * at, steps.combine_tasks, steps.combine_elements, steps.threads)
        at += _FIRST + _COMBINE
    for copy in steps.copies:
        if copy.name in ("dgamma", "dbeta"):
            place.deliver(copy, dgamma if copy.name == "dgamma" else dbeta)


def _run_groups(problem: Problem, steps: Steps, job: np.ndarray[Any, Any], address: int) -> None:
    """The row sums and then the columns of one group of rows after the other."""
    segments = problem.N // SEGMENT
    for first in range(0, problem.M, steps.group_rows):
        stop = min(problem.M, first + steps.group_rows)
        job[_FIRST + 22 : _FIRST + 24] = first, stop
        for function, tasks in ((steps.sums_function, (stop - first) * segments), (steps.function, segments)):
            job[0], job[TASKS], job[TICKET] = function, tasks, 0
            run_job(address, tasks, (stop - first) * problem.N, steps.threads)
