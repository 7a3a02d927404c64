"""An implementation in a process of its own: asked over a pipe, timed from outside, and ended with all that it started.

What comes back is JSON and raw bytes, nothing that could run anything on this side. Memory that the process allocates is
filled first, as far as the C library does that. The process leads a session, so that a signal reaches its children too.
This keeps mistakes and tricks of a kernel away from the judge; it is no sandbox against an attacker.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import numpy as np

from lngrad.check.calls.kernel import PERTURB, POISON, Caller, KernelError, Memory, Request
from lngrad.check.case import CheckCase, Results
from lngrad.check.implementations import Arguments, Fault, Implementation, NotApplicable, Signature, find, has_signature
from lngrad.check.implementations.implementation import OVERWRITTEN, first_line, unprepared
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import NORMS
from lngrad.core.threads import set_num_threads
from lngrad.errors import BackendUnavailable, LngradError, flattened
from lngrad.support.children import BLAS_THREADS, end_of, ends_with_parent, give_up_access, how_it_died
from lngrad.support.compilers import python
from lngrad.support.dtypes import DTYPES, numpy_dtype
from lngrad.testing import Inputs

CALL_SECONDS = 600.0  # that a call may take which is certified
START_SECONDS = 120.0  # to import and look an implementation up, on a loaded machine
TELL_SECONDS = 2.0  # for a kernel that has taken too long, to say where it is
LOOK_SECONDS = 0.5  # after which it is looked whether a process that does not answer is still there
FILLED = {PERTURB: str(0xFF ^ POISON), "MallocScribble": "1"}  # glibc's and macOS's: what is allocated and freed
MAX_MESSAGE_BYTES = 1 << 20  # bytes of a message
_WRITES = {signal.SIGSEGV, signal.SIGBUS}
_BROKEN = (EOFError, OSError, ValueError, KeyError, TypeError)  # of a pipe that somebody else writes to, too


class _Ended(KernelError):
    """The process died; by which signal, if by one."""

    died = True

    def __init__(self, text: str, by: int | None):
        super().__init__(text)
        self.by = by


class KernelProcess:
    """A kernel in a process; one that died is started again with the next call.

    Args:
        name: As for find.
        threads: At most this many for lngrad's own backends and for BLAS.
        time_limit: Seconds that a call may take.
        filled: Whether memory is filled, which takes time.

    Attributes:
        variables: Its environment.
    """

    def __init__(self, name: str, threads: int, time_limit: float, filled: bool = True):
        self.name, self.threads, self.time_limit = name, threads, time_limit
        self.memory = Memory()
        self.has_threads = self.on_device = False
        self.signature: Signature | None = None
        self.seconds = 0.0  # of the last call, the way there and back included
        self.variables = {BLAS_THREADS: str(threads)} | dict(os.environ) | (FILLED if filled else {})
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection
        self._case: CheckCase  # of the last call
        self._writes = False  # to its inputs, as was seen: it gets copies from then on

    def call(self, request: Request) -> Any:
        self._case = request.case
        if self._writes:
            return self._results(self._ask("call", replace(request, copied=True)))
        try:
            return self._results(self._ask("call", request))
        except _Ended as ended:
            if ended.by not in _WRITES:
                raise
            try:
                self._ask("call", replace(request, copied=True))
            except _Ended:
                raise ended from None
            except KernelError:
                self._writes = True
                raise
            self._writes = True
        raise KernelError("it writes to its inputs, and puts back what was there", OVERWRITTEN)

    def again(self) -> Results:
        return self._results(self._ask("again", None))

    def repeat(self, request: Request, number: int) -> None:
        self._case = request.case
        self._ask("repeat", request, number)

    def restart(self) -> bool:
        self.end()
        return True

    def end(self) -> None:
        """End the process and its children."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._log.close()
            self._process = None

    def _ask(self, kind: str, *arguments: Any) -> dict[str, Any]:
        if self._process is None:
            self.start()
        try:
            self._pipe.send((kind, *arguments))
            start = monotonic()
            answer = self._told(self.time_limit, f"not done within {self.time_limit:g} s (--time-limit)")
            self.seconds = monotonic() - start
        except _BROKEN:
            raise self._death() from None
        if answer["kind"] == "skipped":
            raise NotApplicable(flattened(str(answer["text"])))
        if answer["kind"] == "raised":
            raise KernelError(flattened(str(answer["text"])), answer.get("mistake"))
        return answer

    def _told(self, seconds: float, late: str) -> dict[str, Any]:
        assert self._process is not None  # it was asked
        end = monotonic() + seconds
        while not (is_told := self._pipe.poll(max(0.0, min(LOOK_SECONDS, end - monotonic())))) and monotonic() < end:
            if self._process.poll() is not None and not self._pipe.poll():
                raise EOFError  # though what it has left behind may hold the other end
        if not is_told:
            self._process.send_signal(signal.SIGXCPU)  # at which a simulated kernel tells where it is (lngrad/watch.h)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TELL_SECONDS)
            sentence = self._said()
            self.end()
            raise KernelError(late + end_of(sentence))
        answer = json.loads(self._pipe.recv_bytes(MAX_MESSAGE_BYTES))
        if not isinstance(answer, dict) or "kind" not in answer:
            raise EOFError
        return answer

    def _results(self, answer: dict[str, Any]) -> Results:
        """The arrays of an answer. Of one whose size can't be right nothing but dtype and shape is taken."""
        results: dict[str, Any] = {}
        try:
            for name in self._case.outputs:
                if (facts := answer["arrays"][name]) is not None:
                    results[name] = self._array(facts["dtype"], tuple(facts["shape"]), facts["sent"])
        except _BROKEN:
            raise self._death() from None
        return self._case.results(results)

    def _array(self, name: str, shape: tuple[int, ...], sent: bool) -> Any:
        dtype = numpy_dtype(name) if name in DTYPES else np.dtype(name)
        if not sent:
            return np.broadcast_to(np.zeros((), dtype), shape)
        array = np.empty(shape, dtype)
        if array.nbytes and self._pipe.recv_bytes_into(array.reshape(-1).view(np.uint8)) != array.nbytes:
            raise EOFError
        return array

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the process, and look the implementation up in it, within so many seconds.

        Raises:
            BackendUnavailable: There is none.
        """
        self._pipe, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process lives
        arguments = theirs.fileno(), self.memory.read_only, self.name, self.threads, os.getpid()
        program = python(f"from lngrad.check.calls.process import serve; serve{arguments!r}")
        self._process = subprocess.Popen(
            program, pass_fds=(theirs.fileno(), self.memory.read_only), stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, start_new_session=True, env=self.variables,
        )  # fmt: skip
        theirs.close()
        try:
            answer = self._told(seconds, f"--impl: {self.name}: not imported within {seconds:g} s")
        except (EOFError, OSError):
            raise BackendUnavailable(f"--impl: {self.name}: {self._death()}") from None
        if answer["kind"] != "ready":
            self.end()
            raise BackendUnavailable(str(answer["text"]))
        self.has_threads, self.on_device = bool(answer["threads"]), bool(answer["device"])
        if answer["signature"] is not None:
            pairs = answer["signature"].items()
            facts: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in pairs}
            self.signature = Signature(**facts)

    def _death(self) -> _Ended:
        """What became of a process that does not answer."""
        assert self._process is not None  # it was asked
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        sentence = self._said()
        self.end()
        return _Ended(how_it_died(code, sentence), -code if code is not None and code < 0 else None)

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


class KernelProcesses:
    """Kernel processes by name, for those who judge; `filled` ones are checked, others timed."""

    def __init__(self, threads: int, time_limit: float):
        self._threads, self._time_limit = threads, time_limit
        self._running: dict[tuple[str, bool], KernelProcess] = {}

    def __call__(self, name: str, filled: bool = True) -> KernelProcess:
        if (name, filled) not in self._running:
            self._running[name, filled] = KernelProcess(name, self._threads, self._time_limit, filled)
            self._running[name, filled].start(CALL_SECONDS if has_signature(name) else START_SECONDS)  # it may compile
        return self._running[name, filled]

    def signature(self, name: str) -> Signature | None:
        """The signature of a forward, by a trial in its process; None for what is no forward. Raises as `find`."""
        return self(name).signature if has_signature(name) else None

    def end(self) -> None:
        """End all."""
        for kernel in self._running.values():
            kernel.end()
            kernel.memory.close()
        self._running.clear()


def with_variable(name: str, variable: str) -> Implementation:
    """An implementation whose number of threads is an environment variable: a process anew for each number.

    Raises:
        BackendUnavailable: There is none of this name.
    """
    kernel = KernelProcess(name, 1, CALL_SECONDS, filled=False)
    kernel.start()

    def backward(a: Arguments) -> Any:
        assert a.case is not None  # of whoever certifies
        x = a.x if a.summand is None else a.summand
        added = a.normalization, a.residual, a.dtotal, a.gate
        inputs = Inputs(a.dy, x, a.mean, a.rstd, a.gamma, None, len(a.normalized_shape), *added)
        drawn = DrawnInputs(inputs, a.exact or inputs, a.variance, a.eps, 0, a.M)
        return kernel.call(kernel.memory.place(a.case, a.M, [drawn]))

    def set_threads(number: int) -> None:
        kernel.end()
        kernel.variables |= {variable: str(number), BLAS_THREADS: str(number)}

    return Implementation(
        name, unprepared(backward), norms=NORMS, where=f"in a process of its own, {variable} set", set_threads=set_threads,
        elsewhere="it runs in a process of its own",
    )  # fmt: skip


def serve(pipe_descriptor: int, memory: int, name: str, threads: int, parent: int) -> None:
    """The other side: make calls until nobody asks any more. What an implementation prints goes to the log."""
    import resource

    ends_with_parent()
    give_up_access()
    if os.getppid() != parent:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    pipe = Connection(pipe_descriptor)
    set_num_threads(threads)
    try:
        subject = find(name)
    except Exception as error:  # whatever a user's module raises at its import
        known = isinstance(error, LngradError)
        _tell(pipe, kind="refused", text=str(error) if known else f"--impl: {name}: {type(error).__name__}: {error}")
        return
    caller = Caller(subject, memory)
    device = subject.where.startswith("on ")
    _tell(
        pipe,
        kind="ready",
        threads=subject.set_threads is not None,
        device=device,
        signature=subject.signature and subject.signature._asdict(),
    )
    asked: Any = None
    while True:
        try:
            kind, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            if kind == "repeat":
                caller.repeat(*arguments)
                _tell(pipe, kind="done")
                continue
            results = caller.again() if kind == "again" else caller.call(*arguments)
        except NotApplicable as reason:
            _tell(pipe, kind="skipped", text=str(reason))
        except Fault as fault:
            _tell(pipe, kind="raised", text=str(fault), mistake=fault.mistake)
        except Exception as error:
            _tell(pipe, kind="raised", text=first_line(error))
        else:
            asked = arguments[0] or asked
            _send(pipe, results, asked)
            del results


def _tell(pipe: Connection, **answer: Any) -> None:
    pipe.send_bytes(json.dumps(answer).encode())


def _send(pipe: Connection, results: Results, request: Request) -> None:
    case, sent = request.case, []
    answer: dict[str, Any] = dict.fromkeys(case.outputs)
    for name, shape in case.shapes_of_results(request.drawn.stop - request.drawn.start).items():
        if (array := getattr(results, name)) is None:
            continue
        is_sent = array.size == math.prod(shape) and array.dtype.name == case.output_dtypes[name]
        answer[name] = {"dtype": array.dtype.name, "shape": array.shape, "sent": is_sent}
        if is_sent and array.nbytes:
            sent.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    _tell(pipe, kind="done", arrays=answer)
    for data in sent:
        pipe.send_bytes(data)
