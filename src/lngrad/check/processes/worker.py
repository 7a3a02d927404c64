"""The process that runs cases for the command, so that a case which crashes or hangs takes nothing else with it."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from lngrad.check.implementations import find
from lngrad.check.judge import Options, check_case
from lngrad.core.threads import set_num_threads
from lngrad.errors import LngradError

READY, REFUSED, DONE = "ready", "refused", "done"


def work(tasks: Connection, options: Options, threads: int, log: str) -> None:
    """Answer cases with results until None comes. What an implementation prints goes to the log.

    Args:
        tasks: Gives cases, takes ("ready", None), ("refused", text) once and ("done", result) for each case.
        options: Of the run.
        threads: At most this many for lngrad's own backends.
        log: A file for stdout and stderr, whose end is told if this process dies.
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
            answer: tuple[str, Any] = (DONE, check_case(case, options))
        except LngradError as error:
            answer = (REFUSED, str(error))
        tasks.send(answer)


def _next(tasks: Connection) -> Any:
    try:
        return tasks.recv()
    except EOFError:  # the parent is gone
        return None
