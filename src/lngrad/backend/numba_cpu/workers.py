"""Threads that share a job: started when first needed, awake for a moment after each job, asleep otherwise.

Any number of Python threads may call in at once: a worker takes one offer at a time, and a caller whose offers nobody
takes does its job alone. A forked child starts workers of its own. Ctrl-C is seen between batches of tasks.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from lngrad.arrays import address_of
from lngrad.kernels.numba_cpu.entries import pool_address, pool_function
from lngrad.kernels.numba_cpu.jobs import ASLEEP, MASK_BYTES, SLOT_BYTES, Worker
from lngrad.system.alarm import Alarm, affinity_functions
from lngrad.system.threads import MOST_THREADS, lent_parallel_for
from lngrad.typing import Address

__all__ = ["BATCH_ELEMENTS", "SERIAL_ELEMENTS", "crew", "run_job"]

SERIAL_ELEMENTS = 1 << 15  # below, one core is done before a second has joined (10 µs)
ROUSING_ELEMENTS = 1 << 17  # below, a sleeping worker would come too late (about 50 µs), one that still waits would not
BATCH_ELEMENTS = 1 << 26  # between two looks at Ctrl-C: some 30 ms


class _Worker:
    """A thread that serves a slot, and what the compiled code knows of it."""

    def __init__(self, slot: Address, thread: int):
        self._alarm, self._slot, self._thread = Alarm(), slot, thread
        self._masks = np.zeros(2 * MASK_BYTES // 8, np.int64)
        getcpu, getaffinity, setaffinity = affinity_functions()
        self._words = np.array(
            Worker(
                slot=slot,
                thread=thread,
                wait=self._alarm.wait,
                ring=self._alarm.post,
                alarm=self._alarm.address,
                getcpu=getcpu,
                getaffinity=getaffinity,
                setaffinity=setaffinity,
                masks=address_of(self._masks),
            ),
            np.int64,
        )
        self._address = address_of(self._words)

    def live(self) -> None:
        """Be this worker, for ever."""
        if self._alarm.wait:
            self._words[Worker._fields.index("native_id")] = threading.get_native_id()
            pool_function("live")(self._address)
        serve = pool_function("serve")
        while True:
            self._alarm.sleep()
            serve(self._slot, self._thread)

    def wake(self) -> None:
        """End its sleep."""
        if self._alarm.wait:
            pool_function("rouse")(self._address)
        else:
            self._alarm.ring()


class _Workers:
    """The workers of this process."""

    def __init__(self) -> None:
        memory = np.full((MOST_THREADS + 1) * SLOT_BYTES // 8, ASLEEP, np.int64)
        self._memory = memory[-address_of(memory) % SLOT_BYTES // 8 :]
        self.slots = address_of(self._memory)
        self._all: list[_Worker] = []
        self._starting = threading.Lock()

    def ensure(self, count: int) -> None:
        """Have at least `count` workers."""
        if len(self._all) >= count:
            return
        pool_function("live"), pool_function("rouse")
        with self._starting:
            while len(self._all) < count:
                thread = len(self._all) + 1
                worker = _Worker(self.slots + (thread - 1) * SLOT_BYTES, thread)
                threading.Thread(target=worker.live, name=f"lngrad-{thread}", daemon=True).start()
                self._all.append(worker)

    def wake(self, bits: int) -> None:
        """Wake the workers whose bits are set. Each was marked asleep and holds an offer, so its alarm is not yet rung."""
        number = 0
        while bits >> number:
            if bits >> number & 1:
                self._all[number].wake()
            number += 1


_workers = _Workers()


def _forget() -> None:
    """In a forked child the parent's workers do not exist."""
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def crew(tasks: int, elements: int, threads: int) -> int:
    """How many threads go through a job together, of those that are granted."""
    return 1 if elements < SERIAL_ELEMENTS else min(threads, tasks)


def run_job(address: Address, tasks: int, elements: int, threads: int) -> None:
    """Run all tasks of a job, with up to `threads` threads. On return no other thread touches its memory any more.

    Args:
        address: Of a job that nobody works on.
        tasks: How many tasks it has.
        elements: How many elements the tasks go through together: how much help is worth asking for.
        threads: The caller included.
    """
    together = crew(tasks, elements, threads)
    batch = max(1, tasks * BATCH_ELEMENTS // (elements + 1))
    parallel_for = lent_parallel_for() if together > 1 else None
    if parallel_for is not None:
        pool_function("begin")(address, together)
        if parallel_for(0, together, 1, pool_address("share"), address):
            raise RuntimeError("threads: the framework's parallel_for failed")
        return
    work, close = pool_function("work"), pool_function("close")
    pool_function("settle")  # compiled before anybody else knows of the job
    workers, helpers = _workers, together - 1
    workers.ensure(helpers)
    try:
        to_wake = pool_function("lead")(address, together, workers.slots, elements >= ROUSING_ELEMENTS, batch)
        if to_wake >= 0:
            workers.wake(to_wake)
            while not work(address, 0, batch):
                pass
            _settle(address, workers.slots, helpers)
    except BaseException:
        close(address)
        _settle(address, workers.slots, helpers)
        raise


def _settle(address: int, slots: int, helpers: int) -> None:
    """Wait for the helpers, even through Ctrl-C: they write to memory that the caller will free."""
    settle, close = pool_function("settle"), pool_function("close")
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
