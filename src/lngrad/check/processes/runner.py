"""Run cases in processes of their own: several at a time, each with a time limit; results as they come."""

from __future__ import annotations

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
from lngrad.check.judge import Options, case_facts, command_of
from lngrad.check.processes.worker import READY, REFUSED, work
from lngrad.check.result import CaseResult
from lngrad.core.threads import get_num_threads
from lngrad.errors import BackendUnavailable

START_SECONDS = 120.0  # for a worker to import and look its implementation up, on a loaded machine
LOG_CHARACTERS = 400


class _Worker:
    """A process, the case that it has, and when its time is over."""

    def __init__(self, options: Options, threads: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's thread pools
        self.log = folder / f"worker-{id(self)}-{monotonic()}.log"
        self.tasks: Connection
        self.tasks, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, options, threads, str(self.log)), daemon=True)
        with _main_not_run_again():
            self.process.start()
        theirs.close()
        self.ready = False
        self.case: CheckCase | None = None
        self.started = monotonic()

    def give(self, case: CheckCase) -> None:
        self.case, self.started = case, monotonic()
        self.tasks.send(case)

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
def _main_not_run_again() -> Iterator[None]:
    """Spawned processes import the parent's main script; workers need nothing of it, and it may have no guard."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


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
    with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
        try:
            while waiting or any(worker.case for worker in workers):
                while len(workers) < min(jobs, len(waiting) + sum(worker.case is not None for worker in workers)):
                    workers.append(_Worker(options, threads, Path(folder)))
                _turn(workers, waiting, options, time_limit, done)
        finally:
            for worker in workers:
                worker.end()


def _turn(
    workers: list[_Worker],
    waiting: deque[CheckCase],
    options: Options,
    time_limit: float,
    done: Callable[[CaseResult], None],
) -> None:
    """Wait for the next thing to happen, and deal with all that have."""
    limits = [worker.started + (time_limit if worker.ready else START_SECONDS) for worker in workers if _busy(worker)]
    until = max(0.0, min(limits) - monotonic()) if limits else 0.0
    happened = wait([worker.tasks for worker in workers], timeout=min(until, 1.0) if limits else 1.0)
    for worker in list(workers):
        if worker.tasks in happened:
            try:
                kind, value = worker.tasks.recv()
            except (EOFError, ConnectionResetError):
                text = worker.how_it_died()
                if worker.case is None:
                    raise BackendUnavailable(f"--impl: {options.impl}: {text}") from None
                _lost(worker, workers, text, options, done)
                continue
            if kind == REFUSED:
                raise BackendUnavailable(value)
            if kind == READY:
                worker.ready = True
            else:
                worker.case = None
                done(value)
        elif _busy(worker) and monotonic() > worker.started + (time_limit if worker.ready else START_SECONDS):
            if worker.case is None:
                raise BackendUnavailable(f"--impl: {options.impl}: not imported within {START_SECONDS:g} s")
            _lost(worker, workers, f"not done within {time_limit:g} s (--time-limit)", options, done)
            continue
        if worker.ready and worker.case is None and waiting:
            worker.give(waiting.popleft())


def _busy(worker: _Worker) -> bool:
    return worker.case is not None or not worker.ready


def _lost(
    worker: _Worker, workers: list[_Worker], text: str, options: Options, done: Callable[[CaseResult], None]
) -> None:
    """A case that took its worker with it."""
    case = worker.case
    assert case is not None  # callers have looked
    workers.remove(worker)
    seconds = monotonic() - worker.started
    worker.end()
    standard = case.standard or options.standard
    result = CaseResult(case.name, str(case.source), "failed", text, case_facts(case), standard, others=case.others)
    done(replace(result, command=command_of(case, options), seconds=seconds))


def default_jobs() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
