"""CPU backend: a plan's jobs with the addresses of a call, run by this thread or shared with others.

A call that one core finishes before a second has joined runs as one chain, from one compiled call. Memory of small calls
(the chain and its workspace) is kept from call to call, with all in it that is the same for every one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lngrad.core.arrays import ArraySpec, address_of, addresses_of
from lngrad.core.plan import Plan
from lngrad.cpu.entries import pool_function
from lngrad.cpu.job import Job
from lngrad.cpu.jobs import FUNCTION, SEGMENT, STREAM_ALIGNMENT, TASKS
from lngrad.cpu.workers import BATCH_ELEMENTS, SERIAL_ELEMENTS, run_job
from lngrad.cpu.workspace import Workspace
from lngrad.typing import Address, AnyArray, Bytes, Words

KEPT_BYTES = 1 << 16  # of workspace that is kept for the next call


class Copy(NamedTuple):
    """A small array that passes through a region of the workspace, of this dtype there; facts are the caller's."""

    name: str
    dtype: str
    facts: ArraySpec


class StrideTable(NamedTuple):
    """A tensor without a plain row stride, and the region that its table lies in."""

    name: str
    facts: ArraySpec


@dataclass(frozen=True, eq=False)
class Steps:
    """How a problem is cut.

    Attributes:
        threads: At most this many.
        words: The chain of jobs: all is in it but addresses.
        jobs: What lies where in the chain.
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
    jobs: tuple[Job, ...]
    main: Job
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


class Memory:
    """The chain and the workspace of one call. A call in another thread at the same time has its own."""

    def __init__(self, plan: Plan, memory: Bytes):
        steps: Steps = plan.steps
        self.words = steps.words.copy()
        self.address = address_of(self.words)
        self.bytes = memoryview(self.words).cast("B")  # type: ignore[arg-type]  # NumPy arrays are buffers
        self.workspace = Workspace(memory, steps.offsets)
        for word, region in steps.of_workspace:
            self.words[word] = self.workspace.address(region)
        for default in steps.defaults:
            self.workspace.fill(*default)
        for name, facts in steps.tables:
            self.workspace.fill_table(name, facts, len(plan.problem.lead))


def run(plan: Plan, inputs: tuple[AnyArray | float, ...], outputs: tuple[AnyArray, ...], workspace: Bytes) -> None:
    """Compute every wanted output."""
    arrays, eps = (inputs, ()) if plan.problem.op == "backward" else (inputs[:-1], inputs[-1:])
    _run_shared(plan.steps, Memory(plan, workspace), (*addresses_of((*arrays, *outputs)), *eps))  # type: ignore[arg-type]  # eps is a number


def bind(plan: Plan) -> Callable[..., None]:
    """A run on addresses."""
    steps: Steps = plan.steps
    free: list[Memory] = []
    write = steps.write
    alone = (
        steps.main.elements < (SERIAL_ELEMENTS if steps.threads > 1 else BATCH_ELEMENTS)
        and not (steps.copies_in or steps.copies_out or steps.streamed or steps.group_rows)
        and plan.workspace_bytes <= KEPT_BYTES
    )
    run_alone = pool_function("run_alone")

    def run_small(*addresses: float) -> None:
        try:
            memory = free.pop()
        except IndexError:
            memory = Memory(plan, np.empty(plan.workspace_bytes, np.uint8))
        write(memory.bytes, addresses)
        run_alone(memory.address)
        free.append(memory)

    def run_large(*addresses: float) -> None:
        try:
            memory = free.pop()
        except IndexError:
            memory = Memory(plan, np.empty(plan.workspace_bytes, np.uint8))
        _run_shared(steps, memory, addresses)
        if plan.workspace_bytes <= KEPT_BYTES:
            free.append(memory)

    return run_small if alone else run_large


def _run_shared(steps: Steps, memory: Memory, addresses: tuple[float, ...]) -> None:
    """One job of the chain after the other, each shared with other threads if that is worth it."""
    steps.write(memory.bytes, addresses)
    for name, dtype, facts in steps.copies_in:
        memory.workspace.copy_in(name, dtype, int(addresses[steps.argument[name]]), facts)
    if steps.streamed is not None:
        aligned = addresses[steps.argument[steps.streamed]] % STREAM_ALIGNMENT == 0
        memory.words[steps.main.word("streaming")] = aligned
    for job in steps.jobs:
        if job is steps.main and steps.group_rows:
            _run_groups(steps, memory)
        else:
            run_job(memory.address + 8 * job.start, job.tasks, job.elements, steps.threads)
    for name, dtype, facts in steps.copies_out:
        memory.workspace.copy_out(name, dtype, int(addresses[steps.argument[name]]), facts)


def _run_groups(steps: Steps, memory: Memory) -> None:
    """The row sums and then the columns of one group of rows after the other."""
    main, words = steps.main, memory.words
    M, N = int(words[main.word("M")]), int(words[main.word("N")])
    segments = N // SEGMENT
    for first in range(0, M, steps.group_rows):
        stop = min(M, first + steps.group_rows)
        words[main.word("first_row")], words[main.word("stop_row")] = first, stop
        for function, tasks in ((steps.sums_function, (stop - first) * segments), (steps.columns_function, segments)):
            words[main.start + FUNCTION], words[main.start + TASKS] = function, tasks
            run_job(memory.address + 8 * main.start, tasks, (stop - first) * N, steps.threads)
