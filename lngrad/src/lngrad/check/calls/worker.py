"""A process of its own for what may crash, hang or end the process: it runs a function, and answers over a connection."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from lngrad.check.calls.process import BLAS_THREADS, how_it_died


class Worker:
    """A process and our end of its connection.

    Args:
        target: What it runs: a function of a module, of its end of the connection and of `arguments`. Ctrl-C is ours to handle.
        threads: For OpenBLAS in the process.
        folder: Where what it writes to stderr goes.
        keep_stdout: Whether what it writes to stdout goes to ours, and not to the log too.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: object,
        folder: Path,
        threads: int = 1,
        keep_stdout: bool = False,
    ) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's thread pools
        self.log = folder / f"worker-{id(self)}-{monotonic()}.log"
        self.tasks: Connection
        self.tasks, theirs = context.Pipe()
        descriptors = (2,) if keep_stdout else (1, 2)
        self.process = context.Process(
            target=_begin, args=(target, theirs, str(self.log), descriptors, arguments), daemon=True
        )
        with _fit_for_workers(threads):
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        """End a kernel that has taken too long: at this signal it tells where it is (lngrad/watch.h)."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGXCPU)
        self.process.join(2)

    def end(self) -> None:
        """End the process, whatever it does."""
        self.tasks.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def said(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def how_it_died(self) -> str:
        """The signal or the exit code, and the end of what it wrote."""
        self.process.join(5)
        return how_it_died(self.process.exitcode, self.said())


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


def _begin(
    target: Callable[..., None], tasks: Connection, log: str, descriptors: tuple[int, ...], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for one in descriptors:
        os.dup2(descriptor, one)
    target(tasks, *arguments)
