"""Judge cases: one, from its inputs to its result, or many in processes of their own, several at a time; results as they come.

Each of these processes has its kernel in another one (`calls/process.py`), which may crash or hang, and takes nothing else
with it.
"""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NoReturn

from lngrad.check.calls.kernel import KernelError, here
from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import FUZZ, SHIPPED, CheckCase, Options
from lngrad.check.case_calls import CaseCalls, Kernels
from lngrad.check.implementations import NotApplicable
from lngrad.check.implementations.implementation import first_line
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.result import CaseResult, is_unexplained
from lngrad.check.standards import AUTO, LLAMA, STANDARDS, usual
from lngrad.check.trial import result_of
from lngrad.core.threads import get_num_threads, set_num_threads
from lngrad.errors import BackendUnavailable, FileFormatError, LngradError
from lngrad.support.children import Child, end_children, guarded

__all__ = ["Options", "case_facts", "check_case", "command_of", "default_jobs", "run_cases"]

REFUSED, DONE = "refused", "done"
MANY_UNNAMED, LIKELY = 5, 3
END_SECONDS = 5.0  # for a process to end its kernel


def case_facts(case: CheckCase) -> str:
    """A case in one line, for people."""
    lead, normalized = ("×".join(map(str, sizes)) or "1" for sizes in (case.lead, case.normalized))
    gamma = "no gamma" if case.gamma_dtype is None else f"gamma {case.gamma_dtype}"
    outputs = ", ".join(f"{name} {case.output_dtypes[name]}" for name in case.wanted or ())
    norm = "" if case.norm == "layer_norm" else f"{case.norm} "
    gamma += "".join(f", {name} {layout}" for name, layout in case.layouts.items())
    return f"{norm}{lead} | {normalized} {case.dtype}, {gamma}, {case.third} {case.statistics_dtype} → {outputs or 'nothing'}"


def check_case(case: CheckCase, options: Options, kernels: Kernels = here) -> CaseResult:
    """Run and judge one case. An exception of the implementation is a failed case; its text is the reason.

    Args:
        case, options: What to run.
        kernels: Gives an implementation by its name; one that is not trusted lives in a process of its own.

    Raises:
        BackendUnavailable: There is no such implementation.
        FileFormatError: The case asks for what does not exist.
    """
    standard = LLAMA if options.standard == LLAMA else case.standard or options.standard
    if standard == AUTO:
        standard = usual(case.dtype)
    start, bare = perf_counter(), _bare(case, options, standard)
    if not case.enabled:
        return replace(bare, reason="switched off in its file")
    if standard not in STANDARDS:
        raise FileFormatError(f"{case.source}: standard: expected one of {', '.join(STANDARDS)}, got {standard!r}")
    if case.nbytes > options.max_bytes:
        text = f"needs {case.nbytes} bytes, --max-bytes allows {options.max_bytes}"
        return replace(bare, status="failed", reason=f"too large: {text}")
    try:
        calls = CaseCalls(case, options, standard, kernels)
        result = result_of(calls, replace(bare, facts=case_facts(calls.case)))
    except BackendUnavailable:
        raise
    except NotApplicable as reason:
        result = replace(bare, reason=str(reason))
    except Exception as error:
        text, mistake = first_line(error), None
        if isinstance(error, KernelError):
            text, mistake = str(error), error.mistake
        result = replace(bare, status="failed", reason=text, mistake=mistake)
    return replace(result, seconds=perf_counter() - start)


def _bare(case: CheckCase, options: Options, standard: str) -> CaseResult:
    """A result without what a run gives."""
    known = CaseResult(case.label, str(case.source), "skipped", "", case_facts(case), standard, others=case.others)
    return replace(known, command=command_of(case, options))


def command_of(case: CheckCase, options: Options) -> str:
    seed = options.seed if case.seed is None else case.seed
    file = case.source.file
    where = "" if file in SHIPPED else f" {file}" if file.startswith(FUZZ) else f" {shlex.quote(file)}"
    quoted = shlex.quote(f"={case.name}")
    quoted = quoted if quoted[0] == "'" else f"'{quoted}'"  # zsh takes a bare =WORD for the path of a command
    return f"{options.invoked}{where} --seed {seed} --filter {quoted}"


class _Worker(Child):
    """A process that judges, and the case that it has."""

    def __init__(self, options: Options, threads: int, time_limit: float, folder: Path) -> None:
        super().__init__(_work, options, threads, time_limit, folder=folder)
        self.case: CheckCase | None = None
        self.begin = 0.0

    def give(self, case: CheckCase, options: Options) -> None:
        self.case, self.begin = case, monotonic()
        self.connection.send((case, options))

    def end(self) -> None:
        """End the process; it ends its kernel first."""
        self.process.terminate()
        self.process.join(END_SECONDS)
        super().end()


class Patience:
    """How much is said of a failure: once MANY_UNNAMED have no name, and so many more for each that has one, in brief.

    A known mistake that explained LIKELY failures is tried before all others.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._named, self._unnamed = options, 0, 0
        self._known = Counter[tuple[str, ...]]()

    def add(self, result: CaseResult) -> None:
        self._named += result.mistake is not None
        self._unnamed += is_unexplained(result)
        if result.mistake in MISTAKES:
            alike = (name for name, _ in result.alternatives if name in MISTAKES)
            self._known[(result.mistake, *alike)] += 1

    @property
    def options(self) -> Options:
        """For the next case."""
        if self._options.explained != "whole" or self._unnamed < MANY_UNNAMED * (1 + self._named):
            names, number = next(iter(self._known.most_common(1)), ((), 0))
            return replace(self._options, likely=names) if number >= LIKELY else self._options
        return replace(self._options, explained="brief")


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
    patience, is_enough = Patience(options), False

    def give(worker: _Worker) -> None:
        worker.give(waiting.popleft(), patience.options)

    def tell(result: CaseResult) -> None:
        nonlocal is_enough
        patience.add(result)
        done(result)
        is_enough = is_enough or (options.fail_fast and result.status == "failed")

    def turn(worker: _Worker) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            case = worker.case
            assert case is not None  # a worker says nothing without one
            text = f"the process that judges {worker.how_it_died()}; is memory short?"
            workers.remove(worker)
            worker.end()
            bare = _bare(case, options, case.standard or options.standard)
            tell(replace(bare, status="failed", reason=text, seconds=monotonic() - worker.begin))
            return
        if kind == REFUSED:
            raise BackendUnavailable(value)
        worker.case = None
        tell(value)
        if waiting:
            give(worker)

    with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
        try:
            while not is_enough and (waiting or any(worker.case for worker in workers)):
                while waiting and len(workers) < jobs:
                    workers.append(_Worker(options, threads, time_limit, Path(folder)))
                    give(workers[-1])
                ready = wait([worker.connection for worker in workers if worker.case], timeout=1.0)
                for worker in list(workers):
                    if worker.connection in ready:
                        turn(worker)
        finally:
            for worker in workers:
                worker.end()


def default_jobs() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _work(connection: Connection, options: Options, threads: int, time_limit: float) -> None:
    """Send the results of cases: ("done", result), or ("refused", text) and nothing more."""
    signal.signal(signal.SIGTERM, _end)
    guarded()
    set_num_threads(threads)
    kernels = KernelProcesses(threads, time_limit)
    try:
        while True:
            try:
                case, options = connection.recv()
            except EOFError:  # the parent is gone, or has no more
                return
            try:
                connection.send((DONE, check_case(case, options, kernels)))
            except LngradError as error:
                connection.send((REFUSED, str(error)))
    finally:
        kernels.end()
        end_children()


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)
