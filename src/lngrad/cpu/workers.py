"""Threads that share a job: started when first needed, awake for a moment after each job, asleep otherwise.

Any number of Python threads may call in at once: a worker takes one offer at a time, and a caller whose offers nobody
takes does its job alone. A forked child starts workers of its own. Ctrl-C is seen between batches of tasks.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from lngrad.core.arrays import address_of
from lngrad.core.threads import MOST_THREADS, lent_parallel_for
from lngrad.cpu.alarm import Alarm, affinity_functions
from lngrad.cpu.entries import pool_address, pool_function
from lngrad.cpu.jobs import ASLEEP, MASK_BYTES, SLOT_BYTES, WORKER, Worker
from lngrad.typing import Address, Words

SERIAL_ELEMENTS = 1 << 15  # below, one core is done before a second has joined (10 µs)
ROUSING_ELEMENTS = 1 << 17  # below, a sleeping worker would come too late (about 50 µs), one that still waits would not
BATCH_ELEMENTS = 1 << 26  # between two looks at Ctrl-C: some 30 ms


class _Worker:
    """A thread that serves a slot, and what the compiled code knows of it. It keeps the memory of the slots alive."""

    def __init__(self, slots: Words, number: int):
        self._slots, self._number, self._alarm = slots, number, Alarm()
        self._slot = address_of(slots) + number * SLOT_BYTES
        self._masks = np.zeros(2 * MASK_BYTES // 8 + 1, np.int64)
        getcpu, getaffinity, setaffinity = affinity_functions()
        self._words = np.array(
            Worker(
                slot=self._slot,
                thread=number + 1,
                wait=self._alarm.wait,
                post=self._alarm.post,
                alarm=self._alarm.address,
                getcpu=getcpu,
                getaffinity=getaffinity,
                setaffinity=setaffinity,
                masks=address_of(self._masks),
            ),
            np.int64,
        )
        if self._alarm.wait:
            slots[number * SLOT_BYTES // 8 + WORKER] = address_of(self._words)
        pool_function("live" if self._alarm.wait else "serve")  # compiled before anybody offers it a job

    def live(self) -> None:
        """Be this worker, for ever."""
        if self._alarm.wait:
            self._words[Worker._fields.index("native_id")] = threading.get_native_id()
            pool_function("live")(address_of(self._words))
        while True:
            self._alarm.sleep()
            pool_function("serve")(self._slot, self._number + 1)

    def wake(self) -> None:
        """End its sleep, or its next one; for compiled code that can't."""
        if not self._alarm.wait:
            self._alarm.ring()


class _Workers:
    """The workers of this process."""

    def __init__(self) -> None:
        memory = np.full((MOST_THREADS + 1) * SLOT_BYTES // 8, ASLEEP, np.int64)
        self._slots = memory[-address_of(memory) % SLOT_BYTES // 8 :]
        self._slots[WORKER :: SLOT_BYTES // 8] = 0
        self.slots = address_of(self._slots)
        self._all: list[_Worker] = []
        self._starting = threading.Lock()

    def ensure(self, count: int) -> None:
        """Have at least `count` workers."""
        if len(self._all) >= count:
            return
        with self._starting:
            while len(self._all) < count:
                worker = _Worker(self._slots, len(self._all))
                threading.Thread(target=worker.live, name=f"lngrad-{len(self._all) + 1}", daemon=True).start()
                self._all.append(worker)

    def wake(self, bits: int) -> None:
        """Wake the workers whose bits are set, as far as compiled code can't."""
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
    for name in ("work", "settle", "close"):
        pool_function(name)  # compiled before anybody else knows of the job
    workers, helpers = _workers, together - 1
    workers.ensure(helpers)
    try:
        to_wake = pool_function("lead")(address, together, workers.slots, elements >= ROUSING_ELEMENTS, batch)
        if to_wake >= 0:
            workers.wake(to_wake)
            while not pool_function("work")(address, 0, batch):
                pass
            _settle(address, workers.slots, helpers)
    except BaseException:
        _settle(address, workers.slots, helpers, closing=True)
        workers.wake((1 << helpers) - 1)  # one may hold the taken back offer unwoken, and would never be woken again
        raise


def _settle(address: int, slots: int, helpers: int, closing: bool = False) -> None:
    """Wait for the helpers, even through Ctrl-C: they write to memory that the caller will free."""
    interrupt = None
    while True:
        try:
            if closing:
                pool_function("close")(address)
            if pool_function("settle")(address, slots, helpers):
                break
        except KeyboardInterrupt as reason:
            interrupt, closing = reason, True
    if interrupt is not None:
        raise interrupt
