"""How a call's work falls to 1 to 64 threads, by its plan: python scripts/scaling.py [FILE.csv].

Run when the cut of a call has changed: about once a year. Nothing is timed. A plan's jobs run one after the other, and whoever
is free takes the next task, so a call takes at least as long as the busiest thread of each job. Work is bytes read and written.
The balance is all work over the number of threads times that of the busiest ones: 1 where every thread is busy to the end. It
knows nothing of memory, which few cores may fill, nor of the time that threads take to meet.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from lngrad.bench.cpu import SHAPES
from lngrad.core.arrays import ArraySpec
from lngrad.core.plan import make_plan
from lngrad.core.problem import BACKWARD, FORWARD, Operator, describe
from lngrad.support.dtypes import bytes_of, contiguous_strides

THREADS = (1, 2, 4, 8, 16, 32, 64)
DTYPES = ("float32", "bfloat16")


def spec(shape: tuple[int, ...], dtype: str) -> ArraySpec:
    return ArraySpec(shape, dtype, contiguous_strides(shape, bytes_of(dtype)), "cpu", "numpy")


def balance(operator: Operator, M: int, N: int, dtype: str, threads: int) -> tuple[float, int]:
    """The balance, and how many threads have work."""
    x, rows, columns = spec((M, N), dtype), spec((M, 1), "float32"), spec((N,), dtype)
    backward = operator is BACKWARD
    arguments = (x, x, rows, rows, columns) if backward else (x, columns, columns)
    problem, _ = describe(operator, arguments, None, (True,) * 3, None)
    steps = make_plan(problem, "numba_cpu", threads).steps
    everything = busiest = 0.0
    for job in steps.jobs:
        tensors = len(operator.tensors) if job is steps.main else 1
        work = job.elements * tensors * (bytes_of(dtype) if job is steps.main else 4)
        everything += work
        busiest += work * -(-job.tasks // job.threads) / job.tasks
    return everything / (threads * busiest), steps.max_threads


def rows() -> Iterator[tuple[str, int, int, str, int, int, str]]:
    for operator in (BACKWARD, FORWARD):
        for M, N in SHAPES:
            for dtype in DTYPES:
                for threads in THREADS:
                    share, busy = balance(operator, M, N, dtype, threads)
                    yield operator.direction, M, N, dtype, threads, busy, f"{share:.2f}"


def main() -> None:
    header = ("direction", "rows", "columns", "dtype", "threads", "threads with work", "balance")
    found = list(rows())
    if sys.argv[1:]:
        with Path(sys.argv[1]).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *found])
    print("balance with", *(f"{threads:>5}" for threads in THREADS), "threads")
    for first in range(0, len(found), len(THREADS)):
        direction, M, N, dtype, *_ = found[first]
        shares = (row[-1] for row in found[first : first + len(THREADS)])
        print(f"{direction:8} {M}x{N} {dtype}".ljust(35), *(f"{share:>5}" for share in shares))


if __name__ == "__main__":
    main()
