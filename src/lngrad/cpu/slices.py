"""Slices of rows on the CPU: the compiled tasks that stand before and after an exchange between processes.

Not a backend of the table: a call on slices is half of a call. Who has the other half is known in lngrad.torch.sharded.
"""

from __future__ import annotations

import numpy as np

from lngrad.core.arrays import address_of
from lngrad.core.dtypes import ACCUMULATORS, bytes_of
from lngrad.cpu.entries import task_function
from lngrad.cpu.job import new_job
from lngrad.cpu.jobs import LANES, STREAM_ALIGNMENT, Slice
from lngrad.cpu.plan import STREAM_BYTES, TASK_ELEMENTS, TASKS_PER_THREAD
from lngrad.cpu.workers import run_job

LEAST_COLUMNS = LANES  # narrower slices have no kernel


def run_slices(
    task: str,
    dtype: str,
    M: int,
    N: int,
    *,
    threads: int,
    x: tuple[int, int],
    dy: tuple[int, int] = (0, 0),
    result: int = 0,
    mean: int = 0,
    rstd: int = 0,
    gamma: int = 0,
    beta: int = 0,
    row_numbers: int = 0,
) -> None:
    """Run one of the tasks slice_moments, slice_forward, slice_row_sums, slice_dx on M >= 1 rows of N >= 8 columns.

    Args:
        task, dtype: Which, and for elements of which dtype.
        threads: At most this many.
        x, dy: Address of the first row, and bytes from row to row; columns are contiguous.
        result: Address of y or dx, contiguous.
        mean, rstd, gamma, beta, row_numbers: Addresses of contiguous arrays in the accumulator's dtype; gamma and beta 0 for
            1 and 0.
    """
    accumulator = ACCUMULATORS[dtype]
    itemsize = bytes_of(dtype)
    ones, zeros = np.ones(0 if gamma else N, accumulator), np.zeros(0 if beta else N, accumulator)
    rows_per_task = max(1, M // (TASKS_PER_THREAD * threads), TASK_ELEMENTS // N)
    aligned = result % STREAM_ALIGNMENT == 0 and N * itemsize % STREAM_ALIGNMENT == 0
    streaming = M * N * itemsize >= STREAM_BYTES and aligned
    tasks = -(-M // rows_per_task)
    record = Slice(
        dy=dy[0], dy_stride=dy[1], x=x[0], x_stride=x[1], result=result, result_stride=N * itemsize,
        mean=mean, rstd=rstd, gamma=gamma or address_of(ones), beta=beta or address_of(zeros), row_numbers=row_numbers,
        M=M, N=N, streaming=int(streaming), rows_per_task=rows_per_task,
    )  # fmt: skip
    job = new_job(task_function(task, dtype, accumulator), tasks, record)
    run_job(address_of(job), tasks, M * N, threads)
