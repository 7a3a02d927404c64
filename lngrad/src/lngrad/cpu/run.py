"""CPU backend, memory and launching: a plan's jobs with the addresses of a call, run by this thread or shared with others.

A call that one core finishes before a second has joined runs as one chain, from one compiled call. Memory of small calls
(the chain and its workspace) is kept from call to call, with all in it that is the same for every one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lngrad.core.arrays import ArraySpec, array_at
from lngrad.core.memory import allocated
from lngrad.core.plan import Packed, PackedKind, Plan
from lngrad.cpu.entries import entry_address, entry_function
from lngrad.cpu.jobs import BATCH_ELEMENTS, STREAM_ALIGNMENT, ChainedJob, write_head
from lngrad.cpu.strides import table_of
from lngrad.cpu.workers import run_chain
from lngrad.support.addresses import address_of, addresses_of
from lngrad.support.dtypes import bytes_of, numpy_dtype
from lngrad.typing import Address, AnyArray, Array, Bytes, Words

LINE = 64  # bytes of a cache line
KEPT_BYTES = 1 << 16  # of workspace that is kept for the next call
PACKED_ELEMENTS = 1 << 22  # from here on a call takes milliseconds: some µs of Python don't count, Ctrl-C does
PACKED_BYTES = 1 << 23  # of workspace


class Regions:
    """Offsets in a workspace by name, each on a cache line; one line more lets the workspace begin anywhere."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.nbytes = LINE

    def add(self, name: str, elements: int, dtype: str) -> None:
        """Reserve a region."""
        self.offsets[name] = self.nbytes - LINE
        self.nbytes += -(-elements * bytes_of(dtype) // LINE) * LINE


class Workspace:
    """The memory of one run. `start`, its first whole cache line, is the address that offsets count from."""

    def __init__(self, memory: Bytes, offsets: Mapping[str, int]):
        address = address_of(memory)
        self._skipped = -address % LINE
        self.start = address + self._skipped
        self._memory, self._offsets = memory, offsets

    def address(self, name: str) -> Address:
        """The address of a region."""
        return self.start + self._offsets[name]

    def content(self) -> Words:
        """A copy of all of it, from `start` on."""
        at = self._skipped
        return self._memory[at : at + (len(self._memory) - at) // 8 * 8].view(np.int64).copy()

    def _view(self, name: str, elements: int, dtype: np.dtype[np.generic]) -> Array:
        at = self._skipped + self._offsets[name]
        return self._memory[at : at + elements * dtype.itemsize].view(dtype)

    def fill(self, name: str, elements: int, dtype: str, value: float) -> None:
        """Fill a region with a number."""
        self._view(name, elements, numpy_dtype(dtype))[...] = value

    def copy_in(self, name: str, dtype: str, source: Address, spec: ArraySpec) -> None:
        """Convert an array into its region."""
        array = array_at(source, spec)
        with np.errstate(all="ignore"):  # a statistic beyond the range of its dtype is infinite
            np.copyto(self._view(name, array.size, numpy_dtype(dtype)).reshape(array.shape), array, casting="same_kind")

    def copy_out(self, name: str, dtype: str, target: Address, spec: ArraySpec) -> None:
        """Convert what a kernel left in a region into the output that it stood in for."""
        array = array_at(target, spec)
        with np.errstate(all="ignore"):
            np.copyto(array, self._view(name, array.size, numpy_dtype(dtype)).reshape(array.shape), casting="same_kind")

    def put(self, name: str, words: Words) -> None:
        """Write words into a region."""
        self._view(name, len(words), words.dtype)[...] = words


class Copy(NamedTuple):
    """A small array that passes through a region of the workspace, of this dtype there; spec is the caller's array."""

    name: str
    dtype: str
    spec: ArraySpec


class StrideTable(NamedTuple):
    """The table of a tensor without a plain row stride: its region, the functions that copy the tensor's rows, and its content,
    None where that is too much to keep."""

    name: str
    spec: ArraySpec
    functions: tuple[Address, Address]
    words: Words | None


@dataclass(frozen=True, eq=False)
class CpuSteps:
    """The division of a problem into jobs.

    Attributes:
        threads: At most this many.
        words: The chain of jobs: all is in it but addresses. Where rows are taken in groups each job is a chain by itself.
        jobs: What lies where in the chain.
        max_threads: The most that one of them has.
        main: The one of them that goes through the rows.
        write: Writes the caller's addresses, in the order of `argument`, and eps, into a chain.
        places: The words that it writes, -1 for an argument that no job takes where it lies.
        argument: The number of each argument, by name.
        of_workspace: (word, region) of each address in the workspace.
        offsets: Of the regions in the workspace.
        defaults: (region, elements, dtype, value) of an absent gamma or beta.
        tables: Of tensors that pass through scratch.
        copies_in, copies_out: Arrays that NumPy converts before and after.
        streamed: The result that goes past the caches, if its address allows.
        group_rows: For wide rows, how many have their sums and columns done together; else 0.
        sums_function, columns_function: For wide rows, the functions of the two halves.
    """

    threads: int
    words: Words
    jobs: tuple[ChainedJob, ...]
    max_threads: int
    main: ChainedJob
    write: Callable[[memoryview, tuple[float, ...]], None]
    places: tuple[int, ...]
    argument: dict[str, int]
    of_workspace: tuple[tuple[int, str], ...]
    offsets: dict[str, int]
    defaults: tuple[tuple[str, int, str, float], ...]
    tables: tuple[StrideTable, ...]
    copies_in: tuple[Copy, ...]
    copies_out: tuple[Copy, ...]
    streamed: str | None
    group_rows: int = 0
    sums_function: Address = 0
    columns_function: Address = 0


class CallMemory:
    """The chain and the workspace of one call. A call in another thread at the same time has its own."""

    def __init__(self, plan: Plan, memory: Bytes):
        steps: CpuSteps = plan.steps
        self.words = steps.words.copy()
        self.address = address_of(self.words)
        self.bytes = memoryview(self.words).cast("B")  # type: ignore[arg-type]  # NumPy arrays are buffers
        self.workspace = Workspace(memory, steps.offsets)
        for word, region in steps.of_workspace:
            self.words[word] = self.workspace.address(region)
        for default in steps.defaults:
            self.workspace.fill(*default)
        for name, spec, functions, words in steps.tables:
            self.workspace.put(name, table_of(spec, len(plan.problem.lead), functions) if words is None else words)


def run(plan: Plan, inputs: tuple[AnyArray | float, ...], outputs: tuple[AnyArray, ...], workspace: Bytes) -> None:
    """Compute every wanted output."""
    count = len(plan.problem.inputs)
    arrays, eps = inputs[:count], inputs[count:]
    _run_shared(plan.steps, CallMemory(plan, workspace), (*addresses_of((*arrays, *outputs)), *eps))  # type: ignore[arg-type]  # eps is a number


def bind(plan: Plan) -> Callable[..., None]:
    """A run on addresses."""
    steps: CpuSteps = plan.steps
    free: list[CallMemory] = []
    write = steps.write
    alone = (
        steps.max_threads == 1
        and steps.main.elements < BATCH_ELEMENTS
        and not (steps.copies_in or steps.copies_out or steps.streamed or steps.group_rows)
        and plan.workspace_bytes <= KEPT_BYTES
    )
    run_here = entry_function("run_chain")

    def run_small(*addresses: float) -> None:
        try:
            memory = free.pop()
        except IndexError:
            memory = CallMemory(plan, allocated(plan.workspace_bytes))
        write(memory.bytes, addresses)
        run_here(memory.address, 0, 0)
        free.append(memory)

    def run_large(*addresses: float) -> None:
        try:
            memory = free.pop()
        except IndexError:
            memory = CallMemory(plan, allocated(plan.workspace_bytes))
        _run_shared(steps, memory, addresses)
        if plan.workspace_bytes <= KEPT_BYTES:
            free.append(memory)

    return run_small if alone else run_large


def _run_shared(steps: CpuSteps, memory: CallMemory, addresses: tuple[float, ...]) -> None:
    """The chain, and what NumPy does before and after it."""
    steps.write(memory.bytes, addresses)
    for name, dtype, spec in steps.copies_in:
        memory.workspace.copy_in(name, dtype, int(addresses[steps.argument[name]]), spec)
    if steps.streamed is not None:
        aligned = addresses[steps.argument[steps.streamed]] % STREAM_ALIGNMENT == 0
        memory.words[steps.main.word("streaming")] = aligned
    if not steps.group_rows:
        run_chain(memory.address, steps.max_threads)
    for job in steps.jobs if steps.group_rows else ():
        if job is steps.main:
            _run_groups(steps, memory)
        else:
            run_chain(memory.address + 8 * job.start, job.threads)
    for name, dtype, spec in steps.copies_out:
        memory.workspace.copy_out(name, dtype, int(addresses[steps.argument[name]]), spec)


def _run_groups(steps: CpuSteps, memory: CallMemory) -> None:
    """The row sums and then the columns of one group of rows after the other."""
    main, words = steps.main, memory.words
    M, N = int(words[main.word("M")]), int(words[main.word("N")])
    blocks = main.tasks
    for first in range(0, M, steps.group_rows):
        stop = min(M, first + steps.group_rows)
        words[main.word("first_row")], words[main.word("stop_row")] = first, stop
        for function, tasks in ((steps.sums_function, (stop - first) * blocks), (steps.columns_function, blocks)):
            write_head(words[main.start :], function, tasks, (stop - first) * N, steps.threads)
            run_chain(memory.address + 8 * main.start, steps.threads)


def pack(plan: Plan) -> Packed | None:
    """The plan's jobs as numbers, for calls that Ctrl-C may wait for.

    Returns:
        None if more than compiled code takes part: what `jobs_of` says, or a look at Ctrl-C now and then.
    """
    steps: CpuSteps = plan.steps
    if steps.main.elements >= PACKED_ELEMENTS or plan.workspace_bytes > PACKED_BYTES:
        return None
    return jobs_of(plan)


def jobs_of(plan: Plan) -> Packed | None:
    """The plan's jobs as numbers, whatever their size; None if NumPy converts something or rows are taken in groups."""
    steps: CpuSteps = plan.steps
    if steps.copies_in or steps.copies_out or steps.group_rows:
        return None
    written = {*(name for name, *_ in steps.defaults), *(table.name for table in steps.tables)}
    ends = [*steps.offsets.values(), plan.workspace_bytes - LINE][1:]
    end = max((end for name, end in zip(steps.offsets, ends, strict=True) if name in written), default=0)
    workspace = CallMemory(plan, np.zeros(plan.workspace_bytes, np.uint8)).workspace.content()[: end // 8]
    start = -(-len(steps.words) * 8 // LINE) * LINE // 8
    image = np.zeros(start + len(workspace), np.int64)
    image[: len(steps.words)] = steps.words
    image[start:] = workspace
    return Packed(
        PackedKind.JOBS,
        share=entry_address("share"),
        begin=entry_address("begin"),
        words=start + (plan.workspace_bytes - LINE) // 8,  # the workspace begins on a line
        workspace_word=start,
        streaming_word=0 if steps.streamed is None else steps.main.word("streaming"),
        streamed=0 if steps.streamed is None else steps.argument[steps.streamed],
        image=image,
        places=steps.places,
        regions=[number for word, region in steps.of_workspace for number in (word, steps.offsets[region])],
        jobs=[number for job in steps.jobs for number in (job.start, job.threads)],
    )
