"""CPU backend: how a call is cut into jobs. run.py executes what is decided here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lngrad.core.arrays import ArraySpec, merged
from lngrad.core.column_tree import CHUNK
from lngrad.core.plan import Plan, Serves, run_empty
from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    ADD_RMS_BACKWARD,
    ADD_RMS_FORWARD,
    BACKWARD,
    FORWARD,
    GATED_BACKWARD,
    GATED_FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    ROLES,
    SLICE_BACKWARD,
    Problem,
    Role,
)
from lngrad.cpu.entries import kernel_address
from lngrad.cpu.jobs import (
    BLOCK_SEGMENTS,
    DBETA,
    DGAMMA,
    DX,
    GROUP,
    KINDS,
    LANES,
    LANES_BYTES,
    LANES_COLUMN_BYTES,
    MIXED_COLUMNS,
    SCRATCH_TENSORS,
    SEGMENT,
    STREAM_ALIGNMENT,
    Backward,
    Chain,
    ChainedJob,
    Combine,
    Convert,
    Forward,
    Kind,
    Slice,
    bits_of,
    new_job,
    writer,
)
from lngrad.cpu.policy import (
    Machine,
    fetches_result,
    group_bytes,
    lanes_are_rows,
    mixed_columns,
    power_of_two,
    result_streams,
    rows_by_columns,
    rows_of,
    rows_together,
    scratch_bytes,
    side_by_side,
    streams,
    takes_whole_rows,
    this_machine,
)  # fmt: skip
from lngrad.cpu.run import Copy, CpuSteps, Regions, StrideTable, bind, pack, run
from lngrad.cpu.strides import is_contiguous, row_stride, table_of
from lngrad.cpu.workers import run_chain
from lngrad.support.addresses import address_of
from lngrad.support.dtypes import ACCUMULATORS, bytes_of, contiguous_strides

TASKS_PER_THREAD = 8  # enough for balance; more would only add partial sums
TASK_ELEMENTS = 1 << 13  # below, drawing a ticket costs more than it shares out
TABLE_BYTES = 1 << 16  # of how a tensor's rows lie that a plan keeps: two tables took 40 µs of a call of 115
SCRATCH_CHUNKS = 8  # of packed rows at most; more are not copied faster
BY_COLUMNS_FROM = 2 * BLOCK_SEGMENTS * SEGMENT  # columns from which on threads may share a row
COMBINE_ELEMENTS = 1 << 16  # of partial sums that one combine task adds up, at the most
LEAST_COMBINED = 1 << 14  # and at the least, where more threads share them

MIN_COLUMNS = LANES  # of a slice; narrower ones have no kernel

NOTHING = -0.0  # what can be added to any number and leaves its bits

# Their kinds are in KINDS, and have tasks.
SERVES = Serves(
    frozenset(
        (FORWARD, BACKWARD, ADD_FORWARD, ADD_BACKWARD, RMS_FORWARD, RMS_BACKWARD, ADD_RMS_FORWARD, ADD_RMS_BACKWARD,
         GATED_FORWARD, GATED_BACKWARD, SLICE_BACKWARD)
    ),
    switches=frozenset(("centred", "offset", "alpha", "modulated", "norm_before_gate")),
)  # fmt: skip

_DEFAULTS = {"gamma": 1.0, "beta": 0.0}
BITS = {"dx": DX, "dgamma": DGAMMA, "dbeta": DBETA}


def plan(problem: Problem, threads: int) -> Plan:
    """Cut a problem for `threads` threads."""
    if problem.M == 0 or problem.N == 0 or not problem.wanted:
        return Plan(problem, "numba_cpu", 0, None, run_empty)
    builder = PlanBuilder(problem, threads)
    steps = {"forward": _plan_forward, "backward": _plan_backward}[problem.operator.direction](builder)
    return Plan(problem, "numba_cpu", builder.regions.nbytes, steps, run, bind, pack)


@dataclass
class PlanBuilder:
    """Decisions of a plan, step by step: jobs, regions of the workspace, and which word of a job each address goes to.

    Attributes:
        of_caller: For each argument that a job takes where it lies, the word that its address goes to.
        of_workspace: For each word that takes the address of a region, the region's name.
    """

    problem: Problem
    threads: int
    chain: Chain = field(init=False)
    machine: Machine = field(init=False)
    regions: Regions = field(default_factory=Regions)
    of_caller: dict[str, int] = field(default_factory=dict)
    of_workspace: dict[int, str] = field(default_factory=dict)
    defaults: dict[str, float] = field(default_factory=dict)
    copies_in: list[Copy] = field(default_factory=list)
    copies_out: list[Copy] = field(default_factory=list)
    tables: list[StrideTable] = field(default_factory=list)
    packed_bytes: int = 0

    def __post_init__(self) -> None:
        self.chain = Chain(self.threads)
        self.machine = this_machine()

    @property
    def dtype(self) -> str:
        """The dtype of the rows in the kernels: x's, unless the call is computed in float64 for a parameter's sake, or
        other tensors have float32 beside 16 bits."""
        problem = self.problem
        dtypes = {spec.dtype for name, spec in problem.inputs.items() if spec and ROLES[name] is Role.TENSOR}
        is_one = len(dtypes) == 1 and ACCUMULATORS[problem.dtype] == problem.accumulator
        return problem.dtype if is_one else problem.accumulator

    @property
    def gated(self) -> bool:
        """Whether there is a gate: then the row loops take rows in the accumulator's dtype."""
        return "gate" in self.problem.inputs

    @property
    def inner(self) -> str:
        """The dtype of the rows in the row loops."""
        return self.problem.accumulator if self.gated else self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element as the row loops take it."""
        return bytes_of(self.inner)

    def function(self, name: str) -> int:
        return kernel_address(name, self.dtype, self.problem.accumulator)

    def main_function(self, name: str) -> int:
        """The function of a task for this normalization."""
        operator = self.problem.operator
        has_beta = not {"beta", "dbeta"}.isdisjoint((*operator.inputs, *operator.outputs))
        kind = Kind(self.problem.normalization.centred, has_beta, self.gated)
        return self.function(KINDS[kind] + name)

    def rows(self, name: str) -> ArraySpec:
        """The spec of a tensor of x's shape; one that the caller did not bring will be contiguous."""
        problem = self.problem
        shape, dtype = problem.result(name)
        brought = problem.inputs.get(name) or problem.out.get(name)
        strides = contiguous_strides(shape, bytes_of(dtype))
        return brought or ArraySpec(shape, dtype, strides, problem.device, problem.kind)

    @property
    def sample_rows(self) -> int:
        """Rows with one gamma."""
        return self.problem.M // self.problem.samples

    def elements(self, name: str) -> int:
        return self.problem.M if ROLES[name] is Role.STATISTIC else self.problem.samples * self.problem.N

    def reserve_tables(self, *names: str) -> dict[str, int]:
        """Fields of the record: bytes from row to row of each tensor, and for those that have a table instead how they are
        copied, and how many rows at a time."""
        problem = self.problem
        fields = {}
        looped = (
            ("x", "dx") if problem.normalization.norm_before_gate else ("dy", "y")
        )  # by the row loops, beside products
        for name in names:
            spec, dtype = self.rows(name), self.inner if name in looped else self.dtype
            step = row_stride(spec, len(problem.normalized_shape)) if spec.dtype == dtype else None
            fields[f"{name}_stride"] = problem.N * bytes_of(dtype) if step is None else step
            if step is None:
                gather, scatter = (kernel_address(way, spec.dtype, dtype) for way in ("gather", "scatter"))
                words = table_of(spec, len(problem.lead), (gather, scatter))
                self.regions.add(f"{name}_table", len(words), "float64")  # as wide as an int64
                kept = words if words.nbytes <= TABLE_BYTES else None
                self.tables.append(StrideTable(f"{name}_table", spec, (gather, scatter), kept))
        rows = fields["block_rows"] = self.block_rows()
        if self.tables or self.gated:
            tensors, slot = SCRATCH_TENSORS + 3 * ("dgate" in names), rows * problem.N
            size = tensors * slot * self.itemsize
            if self.lanes_may_be_rows("x"):
                size = max(size, LANES_BYTES + LANES_COLUMN_BYTES * problem.N)
            fields |= {"slot_bytes": slot * self.itemsize, "thread_bytes": size}
            self.packed_bytes = self.threads * size
        return fields

    def block_rows(self) -> int:
        """Rows that are packed at a time: whole chunks, no more than there are, or a part of one, a power of two; few where
        their columns follow each other, so that they stay in the first level."""
        M, row_bytes = self.problem.M, self.problem.N * self.itemsize
        are_plain = all(table.words is not None and table.words[-1] for table in self.tables)
        most = self.machine.first_level // (6 if self.tables else 4) if are_plain else scratch_bytes(self.machine)
        rows = min(SCRATCH_CHUNKS * CHUNK, -(-M // CHUNK) * CHUNK, most // row_bytes)
        return rows - rows % CHUNK if rows >= CHUNK else power_of_two(rows)

    def has_table(self, name: str) -> bool:
        """Whether a tensor's rows pass through the scratch."""
        return any(table.name == f"{name}_table" for table in self.tables)

    def lanes_may_be_rows(self, name: str) -> bool:
        """Whether a tensor's rows lie beside each other, enough of them, and their columns fit."""
        problem, spec, lead = self.problem, self.rows(name), len(self.problem.lead)
        if not self.has_table(name) or spec.dtype != self.dtype or not GROUP <= problem.N < 2 * SEGMENT:
            return False
        dims = merged(spec.shape[:lead], spec.strides[:lead])
        beside = bool(dims) and dims[-1][0] >= GROUP and dims[-1][1] == (bytes_of(spec.dtype),)
        return beside and lanes_are_rows(problem.N, bytes_of(spec.dtype), spec.strides[-1], self.machine)

    def widen(self, *names: str, mixed: int = 0) -> dict[str, str]:
        """Bring small inputs into the accumulator's dtype, contiguous, and gamma's offset into gamma.

        Returns the region of each that is not as it should be already. mixed: So many elements of gamma and beta are brought
        into the order of load_mixed too.
        """
        problem, moved, converted = self.problem, {}, []
        for name in names:
            spec, offset = problem.inputs[name], problem.normalization.offset if name == "gamma" else 0.0
            mixes = mixed if name in _DEFAULTS else 0
            moves = offset != 0 or mixes != 0 or (name in _DEFAULTS and problem.samples > 1)
            in_place = spec is not None and spec.dtype == problem.accumulator and is_contiguous(spec)
            if in_place and offset == 0 and mixes == 0:
                continue
            self.regions.add(name, self.elements(name), problem.accumulator)
            moved[name] = name
            if spec is None:
                self.defaults[name] = _DEFAULTS[name] + offset
            elif moves or (name in _DEFAULTS and spec.dtype not in (self.dtype, problem.accumulator)):
                self.shift(name, spec, offset or NOTHING, mixes)
            elif spec.dtype == self.dtype and is_contiguous(spec):
                converted.append(name)
            else:
                self.copies_in.append(Copy(name, problem.accumulator, spec))
        if converted:
            sizes = [self.elements(name) for name in converted]
            records = [Convert(elements=size) for size in sizes]
            job = self.chain.add(self.function("widen"), len(records), sum(sizes), *records)
            for k, name in enumerate(converted):
                self.of_caller[name] = job.word("source", k)
                self.of_workspace[job.word("target", k)] = name
        return moved

    def shift(self, name: str, spec: ArraySpec, offset: float, mixed: int) -> None:
        """Bring gamma or beta, and an offset, into its region, `mixed` elements in the order of load_mixed."""
        problem, accumulator = self.problem, self.problem.accumulator
        stride = row_stride(spec, len(problem.normalized_shape)) if ACCUMULATORS[spec.dtype] == accumulator else None
        direct = stride is not None
        if not direct:
            self.copies_in.append(Copy(name, accumulator, spec))
            stride = problem.N * bytes_of(accumulator)
        record = Convert(elements=problem.N, offset=bits_of(offset), mixed=mixed, stride=stride)
        function = kernel_address("shift", spec.dtype if direct else accumulator, accumulator)
        job = self.chain.add(function, problem.samples, problem.samples * problem.N, record)
        self.of_workspace[job.word("target")] = name
        if direct:
            self.of_caller[name] = job.word("source")
        else:
            self.of_workspace[job.word("source")] = name

    def take(self, job: ChainedJob, names: tuple[str, ...], moved: dict[str, str]) -> None:
        """Connect a job's arguments to the caller's arrays, or to the workspace."""
        for name in names:
            if name in moved:
                self.of_workspace[job.word(name)] = moved[name]
            else:
                self.of_caller[name] = job.word(name)

    def steps(self, main: ChainedJob, streamed: str | None, **choices: int) -> CpuSteps:
        """The decisions so far as they are executed; `streamed` names the result that may go past the caches."""
        problem = self.problem
        names = (*problem.inputs, *problem.out)
        words: list[int | None] = [self.of_caller.get(name) for name in names]
        formats = "q" * len(names)
        for number in problem.operator.numbers:
            words.append(main.word(number))
            formats += "d"
        if self.packed_bytes:  # last: what has to be there before a call lies before it
            self.regions.add("scratch", -(-self.packed_bytes // 8), "float64")
        for name in (*["scratch"] * bool(self.packed_bytes), *(table.name for table in self.tables)):
            self.of_workspace[main.word(name)] = name
        return CpuSteps(
            threads=self.threads,
            words=self.chain.words(linked=not choices.get("group_rows")),
            jobs=tuple(self.chain.jobs),
            max_threads=max(job.threads for job in self.chain.jobs),
            main=main,
            write=writer(words, formats),
            places=tuple(-1 if word is None else word for word in words),
            argument={name: number for number, name in enumerate(names)},
            of_workspace=tuple(self.of_workspace.items()),
            offsets=self.regions.offsets,
            defaults=tuple((name, self.elements(name), problem.accumulator, n) for name, n in self.defaults.items()),
            tables=tuple(self.tables),
            copies_in=tuple(self.copies_in),
            copies_out=tuple(self.copies_out),
            streamed=streamed,
            **choices,
        )


def _plan_forward(builder: PlanBuilder) -> CpuSteps:
    problem, machine = builder.problem, builder.machine
    sums = ("residual", "total") if "residual" in problem.inputs else ()
    fields = builder.reserve_tables("x", "y", *sums, *["gate"] * builder.gated)
    alone = not sums and not builder.gated and problem.samples == 1
    in_lanes = alone and not builder.has_table("y") and builder.lanes_may_be_rows("x")
    mixed = 0 if in_lanes else mixed_columns(problem, builder.inner, builder.threads)
    moved = builder.widen(*(name for name in ("gamma", "beta") if name in problem.inputs), mixed=mixed)
    rows_per_task = max(1, problem.M // (TASKS_PER_THREAD * builder.threads), TASK_ELEMENTS // problem.N)
    if in_lanes:
        rows_per_task = -(-rows_per_task // GROUP) * GROUP
    streamed = not builder.has_table("y") and result_streams(problem, fields["y_stride"], builder.threads, machine)
    rows_at_once, ahead = rows_of(problem, builder.itemsize, builder.threads, streamed, machine)
    record = Forward(
        M=problem.M, N=problem.N, rows_per_task=rows_per_task, rows_at_once=rows_at_once,
        alpha=bits_of(problem.normalization.alpha), ahead=ahead,
        fetches_result=int(fetches_result(problem, builder.threads, ahead, machine, streamed)),
        mixed=mixed, sample_rows=builder.sample_rows, norm_before_gate=int(problem.normalization.norm_before_gate), **fields,
    )  # fmt: skip
    function = builder.main_function("forward_in_lanes" if in_lanes else "forward_rows")
    main = builder.chain.add(function, -(-problem.M // rows_per_task), problem.M * problem.N, record)
    narrowed = _divert_statistics(builder, moved)
    builder.take(main, (*problem.inputs, *problem.out), moved)
    if narrowed:
        records = [Convert(elements=problem.M)] * len(narrowed)
        job = builder.chain.add(builder.function("narrow"), len(records), len(records) * problem.M, *records)
        for k, name in enumerate(narrowed):
            builder.of_workspace[job.word("source", k)] = name
            builder.of_caller[name] = job.word("target", k)
    return builder.steps(main, "y" if streamed else None)


def _divert_statistics(builder: PlanBuilder, moved: dict[str, str]) -> list[str]:
    """Let statistics that the caller wants in another form be written to the workspace. Returns those that a job may narrow;
    NumPy copies the others."""
    problem, narrowed = builder.problem, []
    for name, spec in problem.out.items():
        if ROLES[name] is not Role.STATISTIC:
            continue
        if spec is None or (spec.dtype == problem.accumulator and is_contiguous(spec)):
            continue
        builder.regions.add(name, problem.M, problem.accumulator)
        moved[name] = name
        if spec.dtype == builder.dtype and is_contiguous(spec):
            narrowed.append(name)
        else:
            builder.copies_out.append(Copy(name, problem.accumulator, spec))
    return narrowed


class _Cut(NamedTuple):
    """The division of a backward.

    Attributes:
        tasks: How many, of the main job.
        parts: Tasks of a sample, whose column sums are to be added up.
        slots: Of column sums that each of these has.
        chunks_per_task: If a task has whole rows.
        rows_at_once: That go together.
        ahead: Prefetch distance in rows; 0: off.
        group_rows: If a task has some columns of rows: so many have their sums, and then their columns, done together; else 0.
    """

    tasks: int
    parts: int
    slots: int
    chunks_per_task: int
    rows_at_once: int
    ahead: int
    group_rows: int = 0


def _cut_backward(builder: PlanBuilder, wants_dx: bool, streamed: bool) -> _Cut:
    """By columns where there are few long rows, else by chunks of rows."""
    problem, threads, machine, itemsize = builder.problem, builder.threads, builder.machine, builder.itemsize
    N, chunks = problem.N, -(-builder.sample_rows // CHUNK)
    together = rows_together("backward", N, itemsize, machine)  # though fewer may be streamed side by side
    few_rows = chunks < 2 * threads and not takes_whole_rows(together, N, itemsize, threads, machine)
    column_tasks = -(-(N // SEGMENT) // BLOCK_SEGMENTS)
    by_columns = wants_dx and not builder.tables and problem.samples == 1 and N >= BY_COLUMNS_FROM and few_rows
    if by_columns and not builder.gated and min(threads, column_tasks) >= min(threads, chunks):  # as many are busy
        group_rows = power_of_two(min(CHUNK, group_bytes(threads, machine) // (2 * N * itemsize)))
        rows_at_once = side_by_side(rows_by_columns(N, itemsize, machine), streamed, "backward", N, itemsize, machine)
        return _Cut(column_tasks, 1, chunks.bit_length() + 1, 1, rows_at_once, 0, group_rows)
    chunks_per_task = 1
    while chunks_per_task < chunks and (
        chunks_per_task * CHUNK * N < TASK_ELEMENTS
        or -(-chunks // chunks_per_task) * problem.samples > TASKS_PER_THREAD * threads
    ):
        chunks_per_task *= 2
    tasks = -(-chunks // chunks_per_task)
    rows = rows_of(problem, itemsize, threads, streamed, machine)
    return _Cut(problem.samples * tasks, tasks, chunks_per_task.bit_length(), chunks_per_task, *rows)


def _plan_backward(builder: PlanBuilder) -> CpuSteps:
    problem, threads = builder.problem, builder.threads
    M, N = problem.M, problem.N
    # With a gate one kernel serves every mask.
    wants = DX | DGAMMA if builder.gated else sum(BITS[name] for name in problem.wanted)
    fields = builder.reserve_tables(*problem.operator.tensors)
    mixed = mixed_columns(problem, builder.inner, threads) if wants & (DX | DGAMMA) else 0
    read = ("mean", "rstd", "lost", *["gamma"] * bool(wants & DX))
    moved = builder.widen(*(name for name in read if name in problem.inputs), mixed=mixed)
    direct = bool(wants & DX) and not builder.has_table("dx") and problem.normalization.norm_before_gate
    streamed = direct and result_streams(problem, fields["dx_stride"], threads, builder.machine)
    cut = _cut_backward(builder, bool(wants & DX), streamed)
    by_columns = cut.group_rows > 0
    record = Backward(
        M=M, N=N, wants=wants, chunks_per_task=cut.chunks_per_task, slots_per_task=cut.slots,
        stop_row=M, rows_at_once=cut.rows_at_once, ahead=cut.ahead,
        fetches_result=int(fetches_result(problem, threads, cut.ahead, builder.machine, streamed)),
        completes=int(problem.completes_mean), mixed=mixed, sample_rows=builder.sample_rows, sample_tasks=cut.parts,
        norm_before_gate=int(problem.normalization.norm_before_gate), **fields,
    )  # fmt: skip
    function = builder.main_function(_main_task(wants, N, by_columns))
    main = builder.chain.add(function, cut.tasks, M * N, record)
    builder.take(main, (*problem.inputs, *problem.operator.tensors), moved)
    sums = [name for name in problem.out if ROLES[name] is Role.PARAMETER]
    slot_elements = len(sums) * N * (1 if N >= LANES else LANES)
    if wants & (DGAMMA | DBETA) or N < LANES:  # tiny rows have one kernel for every mask, which clears its slots anyway
        builder.regions.add("slots", problem.samples * cut.parts * cut.slots * slot_elements, problem.accumulator)
        builder.of_workspace[main.word("slots")] = "slots"
    if by_columns:
        builder.regions.add("row_sums", 3 * LANES * cut.group_rows * cut.tasks, problem.accumulator)
        builder.of_workspace[main.word("row_sums")] = "row_sums"
    _add_combining(builder, cut.parts, cut.slots * slot_elements * bytes_of(problem.accumulator), mixed)
    return builder.steps(
        main,
        "dx" if streamed else None,
        columns_function=function if by_columns else 0,
        sums_function=builder.main_function("row_sums") if by_columns else 0,
        group_rows=cut.group_rows,
    )


def _main_task(wants: int, N: int, by_columns: bool) -> str:
    """The name of the main task function."""
    parameters = wants & (DGAMMA | DBETA)
    if by_columns:
        return "columns" if parameters else "columns_dx"
    if N < LANES:
        return "tiny_rows"
    if not wants & DX:
        return "rows_dbeta" if wants == DBETA else "rows_sums"
    if not parameters:
        return "rows_dx"
    return "rows"


def _add_combining(builder: PlanBuilder, parts: int, slot_stride: int, mixed: int) -> None:
    """A job that adds up all tasks' slots and rounds dgamma and dbeta; two only if their dtypes differ."""
    problem, N = builder.problem, builder.problem.N
    elements = problem.samples * 2 * parts * N
    of_task = min(COMBINE_ELEMENTS, max(LEAST_COMBINED, elements // builder.threads))
    columns = max(1, of_task // (2 * parts * MIXED_COLUMNS)) * MIXED_COLUMNS
    outputs = {
        name: output
        for name, output in zip(problem.out, problem.outputs(), strict=True)
        if output is not None and ROLES[name] is Role.PARAMETER
    }
    jobs: dict[str, ChainedJob] = {}
    for name, output in outputs.items():
        if output.dtype not in jobs:
            tasks = -(-N // columns)
            record = Combine(
                slot_stride=slot_stride, parts=parts, N=N, columns_per_task=columns, mixed=mixed, sample_tasks=tasks
            )
            function = kernel_address("combine", output.dtype, problem.accumulator)
            job = jobs[output.dtype] = builder.chain.add(function, problem.samples * tasks, elements, record)
            builder.of_workspace[job.word("slots")] = "slots"
        spec, word = problem.out[name], jobs[output.dtype].word(name)
        if spec is None or is_contiguous(spec):
            builder.of_caller[name] = word
        else:
            builder.regions.add(name, builder.elements(name), output.dtype)
            builder.of_workspace[word] = name
            builder.copies_out.append(Copy(name, output.dtype, spec))


def run_slices(
    task: str,
    dtype: str,
    M: int,
    N: int,
    *,
    threads: int,
    x: tuple[int, int],
    dy: tuple[int, int] = (0, 0),
    dtotal: tuple[int, int] = (0, 0),
    result: int = 0,
    mean: int = 0,
    rstd: int = 0,
    lost: int = 0,
    gamma: int = 0,
    beta: int = 0,
    row_numbers: int = 0,
) -> None:
    """Run one of the tasks whose name has slice_ in it, on M >= 1 rows of N >= 8 columns.

    This is half of a call on longer rows, before or after an exchange between processes (lngrad.torch.sharded), so it has no
    Problem of its own.

    Args:
        task, dtype: Which, and for elements of which dtype.
        threads: At most this many.
        x, dy, dtotal: Address of the first row, and bytes from row to row; columns are contiguous.
        result: Address of y or dx, contiguous.
        mean, rstd, lost, gamma, beta, row_numbers: Addresses of contiguous arrays in the accumulator's dtype; gamma and beta 0
            for 1 and 0.
    """
    accumulator = ACCUMULATORS[dtype]
    itemsize, machine = bytes_of(dtype), this_machine()
    ones, zeros = np.ones(0 if gamma else N, accumulator), np.zeros(0 if beta else N, accumulator)
    rows_per_task = max(1, M // (TASKS_PER_THREAD * threads), TASK_ELEMENTS // N)
    aligned = result % STREAM_ALIGNMENT == 0 and N * itemsize % STREAM_ALIGNMENT == 0
    tensors = sum(address != 0 for address, _ in (x, dy, dtotal, (result, 0)))
    forward = "forward" in task
    streaming = aligned and streams(tensors * M * N * itemsize, threads, forward, itemsize, machine)
    tasks = -(-M // rows_per_task)
    rows_at_once = side_by_side(LANES, streaming, "forward" if forward else "backward", N, itemsize, machine)
    record = Slice(
        dy=dy[0], dy_stride=dy[1], x=x[0], x_stride=x[1], dtotal=dtotal[0], dtotal_stride=dtotal[1],
        result=result, result_stride=N * itemsize, mean=mean, rstd=rstd, lost=lost,
        gamma=gamma or address_of(ones), beta=beta or address_of(zeros), row_numbers=row_numbers,
        M=M, N=N, streaming=int(streaming), rows_per_task=rows_per_task, rows_at_once=rows_at_once,
    )  # fmt: skip
    job = new_job(kernel_address(task, dtype, accumulator), tasks, M * N, threads, record)
    run_chain(address_of(job), threads)
