"""Run cases in processes of their own: several at a time, each with a time limit; results as they come.

A case that crashes or hangs takes nothing else with it. A worker says when an implementation starts and ends, so that the
time limit counts this alone, and not the drawing, judging and diagnosing around it.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

from lngrad.check.case import CheckCase
from lngrad.check.implementations import find
from lngrad.check.judge import Options, case_facts, check_case, command_of
from lngrad.check.processes.worker import Worker
from lngrad.check.result import CaseResult
from lngrad.core.threads import get_num_threads, set_num_threads
from lngrad.errors import BackendUnavailable, LngradError

START_SECONDS = 120.0  # for a worker to import and look its implementation up, on a loaded machine
READY, REFUSED, RUNNING, JUDGING, DONE = "ready", "refused", "running", "judging", "done"


class _Worker(Worker):
    """A process, the case that it has, since when its implementation runs, and how long it ran before (blocks of rows)."""

    def __init__(self, options: Options, threads: int, folder: Path) -> None:
        super().__init__(_work, options, threads, folder=folder, threads=threads)
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


def _work(tasks: Connection, options: Options, threads: int) -> None:
    """Send the results of cases until None comes. What an implementation prints goes to the log.

    Args:
        tasks: Gives cases, takes ("ready", None), ("refused", text) once; for each case ("running", None) and ("judging", None)
            where the implementation starts and ends, and ("done", result).
        options: Of the run.
        threads: At most this many for lngrad's own backends.
    """
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
