"""Run cases in processes of their own: several at a time, each with a time limit; results as they come.

A case that crashes or hangs takes nothing else with it. A worker says when an implementation starts and ends, so that the
time limit counts this alone, and not the drawing, judging and diagnosing around it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

from lngrad.check.case import CheckCase
from lngrad.check.implementations import find
from lngrad.check.judge import Options, case_facts, check_case, command_of
from lngrad.check.result import CaseResult
from lngrad.core.threads import get_num_threads, set_num_threads
from lngrad.errors import BackendUnavailable, LngradError

START_SECONDS = 120.0  # for a worker to import and look its implementation up, on a loaded machine
LOG_CHARACTERS = 400
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
READY, REFUSED, RUNNING, JUDGING, DONE = "ready", "refused", "running", "judging", "done"


class _Worker:
    """A process, the case that it has, since when its implementation runs, and how long it ran before (blocks of rows)."""

    def __init__(self, options: Options, threads: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's thread pools
        self.log = folder / f"worker-{id(self)}-{monotonic()}.log"
        self.tasks: Connection
        self.tasks, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, options, threads, str(self.log)), daemon=True)
        with _fit_for_workers(threads):
            self.process.start()
        theirs.close()
        self.ready = False
        self.case: CheckCase | None = None
        self.given = self.running_since = monotonic()
        self.ran = 0.0

    def give(self, case: CheckCase) -> None:
        self.case, self.given, self.running_since, self.ran = case, monotonic(), math.inf, 0.0
        self.tasks.send(case)

    def set_running(self, running: bool) -> None:
        if not running:
            self.ran += monotonic() - self.running_since
        self.running_since = monotonic() if running else math.inf

    @property
    def is_busy(self) -> bool:
        return self.case is not None or not self.ready

    def deadline(self, time_limit: float) -> float:
        """When its start, or its implementation, has taken too long; infinite while it does something else."""
        return self.running_since + (time_limit - self.ran if self.ready else START_SECONDS)

    def end(self) -> None:
        self.tasks.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def how_it_died(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        said = self.log.read_text(errors="replace")[-LOG_CHARACTERS:].strip() if self.log.exists() else ""
        return f"crashed ({how})" + (f"; it said: {' / '.join(said.splitlines()[-4:])}" if said else "")


@contextmanager
def _fit_for_workers(threads: int) -> Iterator[None]:
    """Spawned processes import the parent's main script, of which workers need nothing, and which may have no guard.

    OpenBLAS asks for its threads when NumPy is imported. With all cores for each worker they wait for each other: on 2 busy
    cores of an AMD EPYC, a diagnosis that nothing explains took 31 s, and 8 s with one thread.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    ours = BLAS_THREADS not in os.environ
    if ours:
        os.environ[BLAS_THREADS] = str(threads)
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

    Raises:
        BackendUnavailable: The implementation can't be had, or a case asks for what does not exist.
        KeyboardInterrupt: As it comes; the processes are ended, and what was done has been told.
    """
    waiting = deque(cases)
    jobs = max(1, min(jobs, len(cases)))
    threads = max(1, get_num_threads() // jobs)
    workers: list[_Worker] = []

    def lost(worker: _Worker, text: str) -> None:
        """A case that took its worker with it, or a worker that never had one."""
        case = worker.case
        if case is None:
            raise BackendUnavailable(f"--impl: {options.impl}: {text}")
        workers.remove(worker)
        seconds, standard = monotonic() - worker.given, case.standard or options.standard
        worker.end()
        result = CaseResult(case.name, str(case.source), "failed", text, case_facts(case), standard, others=case.others)
        done(replace(result, command=command_of(case, options), seconds=seconds))

    def turn(worker: _Worker, told: bool) -> None:
        if told:
            try:
                kind, value = worker.tasks.recv()
            except (EOFError, ConnectionResetError):
                return lost(worker, worker.how_it_died())
            if kind == REFUSED:
                raise BackendUnavailable(value)
            if kind == READY:
                worker.ready = True
            elif kind in (RUNNING, JUDGING):
                worker.set_running(kind == RUNNING)
            else:
                worker.case = None
                done(value)
        elif worker.is_busy and monotonic() > worker.deadline(time_limit):
            late = f"not imported within {START_SECONDS:g} s"
            return lost(worker, f"not done within {time_limit:g} s (--time-limit)" if worker.case else late)
        if worker.ready and worker.case is None and waiting:
            worker.give(waiting.popleft())

    with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
        try:
            while waiting or any(worker.case for worker in workers):
                while len(workers) < min(jobs, len(waiting) + sum(worker.case is not None for worker in workers)):
                    workers.append(_Worker(options, threads, Path(folder)))
                until = min((worker.deadline(time_limit) for worker in workers if worker.is_busy), default=math.inf)
                told = wait([worker.tasks for worker in workers], timeout=min(max(0.0, until - monotonic()), 1.0))
                for worker in list(workers):
                    turn(worker, worker.tasks in told)
        finally:
            for worker in workers:
                worker.end()


def default_jobs() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _work(tasks: Connection, options: Options, threads: int, log: str) -> None:
    """Send the results of cases until None comes. What an implementation prints goes to the log.

    Args:
        tasks: Gives cases, takes ("ready", None), ("refused", text) once; for each case ("running", None) and ("judging", None)
            where the implementation starts and ends, and ("done", result).
        options: Of the run.
        threads: At most this many for lngrad's own backends.
        log: A file for stdout and stderr, whose end is reported if this process dies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    set_num_threads(threads)
    try:
        if options.against is None:
            find(options.impl)
    except Exception as error:  # whatever a user's module raises at its import
        known = isinstance(error, LngradError)
        tasks.send((REFUSED, str(error) if known else f"--impl: {options.impl}: {type(error).__name__}: {error}"))
        return
    tasks.send((READY, None))
    while (case := _next(tasks)) is not None:
        try:
            result = check_case(case, options, lambda running: tasks.send((RUNNING if running else JUDGING, None)))
            tasks.send((DONE, result))
        except LngradError as error:
            tasks.send((REFUSED, str(error)))


def _next(tasks: Connection) -> Any:
    try:
        return tasks.recv()
    except EOFError:  # the parent is gone
        return None
