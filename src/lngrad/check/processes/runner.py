"""Judge cases in processes of their own, several at a time; results as they come.

Each of these processes has its kernel in another one (`calls/process.py`), which may crash or hang, and takes nothing else
with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, NoReturn

from lngrad.check.calls.process import BLAS_THREADS, KernelProcesses
from lngrad.check.case import CheckCase
from lngrad.check.judge import Options, case_facts, check_case, command_of
from lngrad.check.result import CaseResult
from lngrad.core.threads import get_num_threads, set_num_threads
from lngrad.errors import BackendUnavailable, LngradError

REFUSED, DONE = "refused", "done"
END_SECONDS = 5.0  # for a process to end its kernel


class _Worker:
    """A process and the case that it has."""

    def __init__(self, options: Options, threads: int, time_limit: float) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's thread pools
        self.tasks: Connection
        self.tasks, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, options, threads, time_limit), daemon=True)
        with _fit_for_workers():
            self.process.start()
        theirs.close()
        self.case: CheckCase | None = None
        self.given = 0.0

    def give(self, case: CheckCase) -> None:
        self.case, self.given = case, monotonic()
        self.tasks.send(case)

    def end(self) -> None:
        """End the process; it ends its kernel first."""
        self.tasks.close()
        self.process.terminate()
        self.process.join(END_SECONDS)
        self.process.kill()
        self.process.join()


@contextmanager
def _fit_for_workers() -> Iterator[None]:
    """Spawned processes import the parent's main script, of which workers need nothing, and which may have no guard.

    OpenBLAS asks for its threads when NumPy is imported. A diagnosis multiplies small matrices: on 2 busy cores of an AMD EPYC,
    one that nothing explains took 31 s with all cores, and 8 s with one thread.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    ours = BLAS_THREADS not in os.environ
    if ours:
        os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        main.__dict__.update(hidden)
        if ours:
            del os.environ[BLAS_THREADS]


def run_cases(
    cases: Sequence[CheckCase], options: Options, jobs: int, time_limit: float, done: Callable[[CaseResult], None]
) -> None:
    """Run all cases; `done` gets each result, in no fixed order.

    Args:
        cases, options: What to run.
        jobs: How many at a time.
        time_limit: Seconds that a call of the implementation may take.
        done: Is told.

    Raises:
        BackendUnavailable: The implementation can't be had, or a case asks for what does not exist.
        KeyboardInterrupt: As it comes; the processes are ended, and what was done has been told.
    """
    waiting = deque(cases)
    jobs = max(1, min(jobs, len(cases)))
    threads = max(1, get_num_threads() // jobs)
    workers: list[_Worker] = []

    def turn(worker: _Worker) -> None:
        try:
            kind, value = worker.tasks.recv()
        except (EOFError, ConnectionResetError):
            case = worker.case
            assert case is not None  # a worker says nothing without one
            workers.remove(worker)
            worker.end()
            text = f"the process that judged it was ended (exit code {worker.process.exitcode}): short of memory?"
            standard = case.standard or options.standard
            lost = CaseResult(
                case.label, str(case.source), "failed", text, case_facts(case), standard, others=case.others
            )
            done(replace(lost, command=command_of(case, options), seconds=monotonic() - worker.given))
            return
        if kind == REFUSED:
            raise BackendUnavailable(value)
        worker.case = None
        done(value)
        if waiting:
            worker.give(waiting.popleft())

    try:
        while waiting or any(worker.case for worker in workers):
            while waiting and len(workers) < jobs:
                workers.append(_Worker(options, threads, time_limit))
                workers[-1].give(waiting.popleft())
            told = wait([worker.tasks for worker in workers if worker.case], timeout=1.0)
            for worker in list(workers):
                if worker.tasks in told:
                    turn(worker)
    finally:
        for worker in workers:
            worker.end()


def default_jobs() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _work(tasks: Connection, options: Options, threads: int, time_limit: float) -> None:
    """Send the results of cases: ("done", result), or ("refused", text) and nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, _end)
    set_num_threads(threads)
    kernels = KernelProcesses(threads, time_limit)
    try:
        while True:
            try:
                case = tasks.recv()
            except EOFError:  # the parent is gone, or has no more
                return
            try:
                tasks.send((DONE, check_case(case, options, kernels)))
            except LngradError as error:
                tasks.send((REFUSED, str(error)))
    finally:
        kernels.end()


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)
