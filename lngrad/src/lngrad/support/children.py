"""Child processes: `Child` runs a function that may crash, hang or end its process; guards end children with their parent and
keep them from writing its memory (on Linux; elsewhere these do nothing)."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from lngrad.errors import flattened

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
SAFE_PATH, _OURS = "PYTHONSAFEPATH", "lngrad"  # keeps the current folder out of sys.path, from Python 3.11 on
LOG_CHARACTERS = 400  # of what a child wrote, in a message

_DEATH_SIGNAL, _DUMPABLE, _DROP, _SUBREAPER = 1, 4, 24, 36  # of prctl
_PTRACE = 19  # the capability
_ROUNDS = 100  # of killing: what is killed may leave children of its own


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def ends_with_parent() -> None:
    """This process does not outlive the one that started it."""
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)


def guarded() -> None:
    """No other process without a capability reads or writes our memory; what our children leave behind is left to us."""
    _prctl(_DUMPABLE, 0)
    _prctl(_SUBREAPER, 1)


def give_up_access() -> None:
    """Give up, for ever, the capability to write the memory of processes that are guarded: of root and what it starts."""
    if sys.platform != "linux":
        return
    _prctl(_DROP, _PTRACE)
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if not libc.capget(header, sets):
        for place in range(3):
            sets[place] &= ~(1 << _PTRACE)
        libc.capset(header, sets)


def end_children(kept: Callable[[int, int], bool] = lambda process, session: False) -> None:
    """Kill our children, and theirs, however these were detached, but for those kept, by their numbers and sessions."""
    for _ in range(_ROUNDS):
        if not (left := [process for process, session in children() if not kept(process, session)]):
            return
        for process in left:
            with suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def children() -> Iterator[tuple[int, int]]:
    """Our children, and what was left to us, with their sessions."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(parent) == os.getpid():
                yield int(path.parent.name), int(session)


class Child:
    """A process that runs a function and answers over a connection, which may crash, hang or end.

    Args:
        target: A function of a module, called with the child's end of the connection and `arguments`. It does not get Ctrl-C.
        folder: Of the log, which gets the child's stderr, and its stdout.
        threads: Number of OpenBLAS's threads in the child.
        keep_stdout: Whether the child shares this process's stdout instead.

    Attributes:
        connection: This end.
    """

    def __init__(
        self, target: Callable[..., None], *arguments: object, folder: Path, threads: int = 1, keep_stdout: bool = False
    ) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's thread pools
        self.log = folder / f"child-{id(self)}-{monotonic()}.log"
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        descriptors = (2,) if keep_stdout else (1, 2)
        self.process = context.Process(
            target=_begin, args=(target, theirs, str(self.log), descriptors, arguments), daemon=True
        )
        with _fit_for_children(threads):
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        """Send SIGXCPU, at which a simulated kernel tells where it is (lngrad/watch.h), and wait for the end for 2 s."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGXCPU)
        self.process.join(2)

    def end(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def output(self) -> str:
        """Text of the log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def how_it_died(self) -> str:
        """The signal or the exit code, and the end of the log."""
        self.process.join(5)
        return how_it_died(self.process.exitcode, self.output())


@contextmanager
def _fit_for_children(threads: int) -> Iterator[None]:
    """Spawned processes import the parent's main script, of which children need nothing, and which may have no guard.

    OpenBLAS asks for its threads when NumPy is imported. With all cores for each child they wait for each other: on 2 busy
    cores of an AMD EPYC, a diagnosis that nothing explains took 31 s, and 8 s with one thread.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    wanted = {BLAS_THREADS: str(threads), SAFE_PATH: _OURS}
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        main.__dict__.update(hidden)
        for name in ours:
            del os.environ[name]


def _begin(
    target: Callable[..., None],
    connection: Connection,
    log: str,
    descriptors: tuple[int, ...],
    arguments: tuple[Any, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get(SAFE_PATH) == _OURS:  # a program that this child starts has the path that it has elsewhere
        del os.environ[SAFE_PATH]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for replaced in descriptors:
        os.dup2(descriptor, replaced)
    target(connection, *arguments)


def how_it_died(code: int | None, output: str) -> str:
    """The signal or the exit code of a process, and the end of its output."""
    if code is None:
        return f"it left off answering, and did not end{end_of(output)}"
    how = f"exit code {code}"
    if code < 0:
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"crashed ({how}){end_of(output)}"


def end_of(output: str) -> str:
    """The last lines of a process's output, behind "; it said:"."""
    lines = [flattened(line) for line in output[-LOG_CHARACTERS:].strip().splitlines()[-4:]]
    return f"; it said: {' / '.join(lines)}" if lines else ""
