"""A plan as an array of numbers, which compiled code outside of this backend runs with addresses alone."""

from __future__ import annotations

import numpy as np

from lngrad.core.plan import Plan
from lngrad.cpu.entries import pool_address
from lngrad.cpu.run import Memory, Steps
from lngrad.cpu.workers import crew
from lngrad.cpu.workspace import LINE
from lngrad.typing import Words

PACKED_ELEMENTS = 1 << 22  # from here on a call takes milliseconds: some µs of Python don't count, Ctrl-C does
PACKED_BYTES = 1 << 20  # of workspace


def pack(plan: Plan) -> Words | None:
    """The plan as five lists, each with a number of its own and its length in front, all int64.

    1. The addresses of two C functions: (first, stop, job), by which threads first … stop-1 work on a job, and (job, threads),
       by which a job begins.
    2. The word that the workspace begins at; the jobs, and behind them, on a cache line, the workspace as it has to be
       before the first call.
    3. 0; for each argument the word that its address goes to, or -1: inputs and outputs of the problem, and a forward's eps.
    4. 0; for each job the word that it begins at, and how many threads go through it.
    5. 0; pairs of a word, and the offset in the workspace whose address it takes.

    Returns:
        The numbers. None if more than compiled code takes part: NumPy's conversions, a look at addresses, groups of rows,
        or a look at Ctrl-C now and then.
    """
    steps: Steps = plan.steps
    if steps.copies_in or steps.copies_out or steps.streamed or steps.group_rows:
        return None
    if steps.main.elements >= PACKED_ELEMENTS or plan.workspace_bytes > PACKED_BYTES:
        return None
    workspace = Memory(plan, np.zeros(-(-plan.workspace_bytes // 8) * 8, np.uint8)).workspace.content()
    start = -(-len(steps.words) * 8 // LINE) * LINE // 8
    image = np.zeros(start + len(workspace), np.int64)
    image[: len(steps.words)] = steps.words
    image[start:] = workspace
    jobs = [number for job in steps.jobs for number in (job.start, crew(job.tasks, job.elements, steps.threads))]
    regions = [number for word, region in steps.of_workspace for number in (word, steps.offsets[region])]
    lists = (
        (pool_address("share"), (pool_address("begin"),)),
        (start, image),
        (0, steps.places),
        (0, jobs),
        (0, regions),
    )
    return np.concatenate([np.asarray((number, len(values), *values), np.int64) for number, values in lists])
