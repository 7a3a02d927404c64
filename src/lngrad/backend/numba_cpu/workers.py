"""Threads that share a job: started when first needed, awake for a moment after each job, asleep otherwise.

Any number of Python threads may call in at once: a worker takes one offer at a time, and a caller whose offers nobody
takes does its job alone. A forked child starts workers of its own. Ctrl-C is seen between batches of tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from lngrad.arrays import address_of
from lngrad.kernels.numba_cpu.pool import (
    ARGUMENTS,
    ASLEEP,
    SLOT_BYTES,
    TASKS,
    close,
    offer,
    serve,
    settle,
    share_function,
    work,
)
from lngrad.system.threads import MOST_THREADS

__all__ = ["ARGUMENTS", "lent_threads", "new_job", "run_job"]

SERIAL_ELEMENTS = 1 << 15  # below, one core is done before a second has joined (10 µs)
ROUSING_ELEMENTS = 1 << 17  # below, a sleeping worker would come too late (about 50 µs), one that still waits would not
BATCH_ELEMENTS = 1 << 26  # between two looks at Ctrl-C: some 30 ms


class _Workers:
    """The workers of this process."""

    def __init__(self) -> None:
        memory = np.full((MOST_THREADS + 1) * SLOT_BYTES // 8, ASLEEP, np.int64)
        self._memory = memory[-address_of(memory) % SLOT_BYTES // 8 :]
        self.slots = address_of(self._memory)
        self._alarms: list[threading.Lock] = []
        self._starting = threading.Lock()

    def ensure(self, count: int) -> None:
        """Have at least `count` workers."""
        if len(self._alarms) >= count:
            return
        with self._starting:
            while len(self._alarms) < count:
                number, alarm = len(self._alarms), threading.Lock()
                alarm.acquire()
                slot = self.slots + number * SLOT_BYTES
                threading.Thread(
                    target=_live, args=(slot, number + 1, alarm), name=f"lngrad-{number + 1}", daemon=True
                ).start()
                self._alarms.append(alarm)

    def wake(self, bits: int) -> None:
        """Wake the workers whose bits are set. Each was marked asleep and holds an offer, so its alarm is not yet rung."""
        number = 0
        while bits >> number:
            if bits >> number & 1:
                self._alarms[number].release()
            number += 1


def _live(slot: int, thread: int, alarm: threading.Lock) -> None:
    while True:
        alarm.acquire()
        serve(slot, thread)


_workers = _Workers()


def _forget() -> None:
    """In a forked child the parent's workers do not exist."""
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def new_job(function: int, tasks: int, arguments: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A job for run_job: the task function's address, the number of tasks and the arguments from place ARGUMENTS on."""
    job = np.zeros(ARGUMENTS + len(arguments), np.int64)
    job[0], job[TASKS] = function, tasks
    job[ARGUMENTS:] = arguments
    return job


class _Lent(threading.local):
    """In each thread of Python, whose threads help with its jobs."""

    parallel_for: Callable[[int, int, int, int, int], int] | None = None


_lent = _Lent()


class lent_threads:
    """A context in which somebody else's threads help with this thread's jobs, and ours sleep on.

    A program that computes with threads of its own between our calls keeps them awake for a while, as we do ours: two
    such crews would take the cores from each other.

    Args:
        parallel_for: (first, stop, grain, function, argument) -> 0. It calls the C function (first, stop, argument) at an
            address for parts of first … stop-1, each number in one part, and returns when all have ended. None: nobody helps
            but our own workers.
    """

    def __init__(self, parallel_for: Callable[[int, int, int, int, int], int] | None):
        self._parallel_for = parallel_for

    def __enter__(self) -> None:
        _lent.parallel_for = self._parallel_for

    def __exit__(self, *exception: object) -> None:
        _lent.parallel_for = None


def run_job(address: int, tasks: int, elements: int, threads: int) -> None:
    """Run all tasks of a job, with up to `threads` threads. On return no other thread touches its memory any more.

    Args:
        address: Of a job from new_job, its ticket at 0.
        tasks: How many tasks it has.
        elements: How many elements the tasks go through together: how much help is worth asking for.
        threads: The caller included.
    """
    batch = max(1, tasks * BATCH_ELEMENTS // (elements + 1))
    if elements < SERIAL_ELEMENTS or tasks == 1 or threads == 1:
        while not work(address, 0, batch):
            pass
        return
    if _lent.parallel_for is not None:
        if _lent.parallel_for(0, min(threads, tasks), 1, share_function(), address):
            raise RuntimeError("threads: the framework's parallel_for failed")
        return
    workers, helpers = _workers, min(threads, tasks) - 1
    workers.ensure(helpers)
    try:
        workers.wake(offer(address, workers.slots, helpers, elements >= ROUSING_ELEMENTS))
        while not work(address, 0, batch):
            pass
    except BaseException:
        close(address)
        raise
    finally:
        _settle(address, workers.slots, helpers)


def _settle(address: int, slots: int, helpers: int) -> None:
    """Wait for the helpers, even through Ctrl-C: they write to memory that the caller will free."""
    interrupt = None
    while True:
        try:
            if settle(address, slots, helpers):
                break
        except KeyboardInterrupt as reason:
            interrupt = reason
            close(address)
    if interrupt is not None:
        raise interrupt
