"""Threads that share a job: started when first needed, awake for a moment after each job, asleep otherwise.

Any number of Python threads may call in at once: a worker takes one offer at a time, and a caller whose offers nobody
takes does its job alone; so does one for which the system starts no thread. A forked child starts workers of its own.
Ctrl-C is seen between batches of tasks.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from lngrad.core.threads import MAX_THREADS, lent_parallel_for
from lngrad.cpu.entries import entry_address, entry_function
from lngrad.cpu.jobs import (
    ASLEEP,
    BATCH,
    MASK_BYTES,
    NEXT,
    PAUSES,
    SLOT_BYTES,
    THREADS,
    TICKETS,
    TO_WAKE,
    WORKER,
    Worker,
)
from lngrad.support.addresses import address_of
from lngrad.typing import Address, Words

_ACTIVE_NS = 100_000  # that a worker waits before it sleeps; OpenMP's runtimes wait ten times as long
_MAX_PAUSES = 1 << 17  # on an architecture whose pause takes no time
_SEMAPHORE_WORDS = 16  # 128 bytes; the largest sem_t that is known to us has 32


@cache
def _c_library(*functions: str) -> Any:
    """The C library, if it has all of these functions; else None."""
    try:
        library = ctypes.CDLL(None)
        for name in functions:
            getattr(library, name)
    except (TypeError, OSError, AttributeError):
        return None
    return library


def _semaphores() -> Any:
    return _c_library("sem_init", "sem_wait", "sem_post")


def _processors() -> Any:
    """The C library, if it knows processors by their numbers, as Linux's does."""
    return _c_library("sched_getcpu", "sched_getaffinity", "sched_setaffinity")


@cache
def _pauses() -> int:
    """The number of pauses that take _ACTIVE_NS: 4000 on one make of processor, 12,000 on another."""
    wait, many, times = entry_function("wait_pauses"), 2000, []
    for _ in range(3):
        before = time.perf_counter_ns()
        wait(many)
        times.append(time.perf_counter_ns() - before)
    return min(many * _ACTIVE_NS // max(1, min(times)), _MAX_PAUSES)


def _function_address(function: Any) -> Address:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Semaphore:
    """One thread waits for it and any other may post it: by C functions where the system has semaphores, elsewhere by `wait`
    and `post`, whose waiting thread must get the GIL when it wakes.

    Attributes:
        wait_function: The address of the C function, int (int64 address), that sleeps until it is posted and returns 0, or
            else was interrupted by a signal. 0 where there is none.
        post_function: The address of the C function, int (int64 address), that posts it. 0 where `wait_function` is.
        address: What these functions are called with.
    """

    def __init__(self) -> None:
        self._semaphore = (ctypes.c_int64 * _SEMAPHORE_WORDS)()
        self.address: Address = ctypes.addressof(self._semaphore)
        self.wait_function: Address = 0
        self.post_function: Address = 0
        library = _semaphores()
        if library is not None and library.sem_init(self._semaphore, 0, 0) == 0:  # macOS has the name, and refuses
            self.wait_function = _function_address(library.sem_wait)
            self.post_function = _function_address(library.sem_post)
        else:
            self._lock = threading.Lock()
            self._lock.acquire()

    def post(self) -> None:
        """Wake the waiting thread, or the one that waits next, where `wait_function` is 0."""
        with suppress(RuntimeError):  # it was posted already
            self._lock.release()

    def wait(self) -> None:
        """Sleep until it is posted, where `wait_function` is 0."""
        self._lock.acquire()


class _Worker:
    """A thread that serves a slot, and its record for the compiled code. It keeps the memory of the slots alive."""

    def __init__(self, slots: Words, number: int):
        self._slots, self._number, self._semaphore = slots, number, Semaphore()
        self._slot = address_of(slots) + number * SLOT_BYTES
        self._masks = np.zeros(2 * MASK_BYTES // 8 + 1, np.int64)
        processors = _processors()
        self._words = np.array(
            Worker(
                slot=self._slot,
                thread=number + 1,
                wait=self._semaphore.wait_function,
                post=self._semaphore.post_function,
                semaphore=self._semaphore.address,
                getcpu=_function_address(processors.sched_getcpu) if processors else 0,
                getaffinity=_function_address(processors.sched_getaffinity) if processors else 0,
                setaffinity=_function_address(processors.sched_setaffinity) if processors else 0,
                masks=address_of(self._masks),
            ),
            np.int64,
        )
        entry_function("worker_main" if self._semaphore.wait_function else "run_worker")  # compiled before it has a job

    def start(self) -> None:
        """Start the thread, and only then let compiled code wake it.

        Raises:
            RuntimeError: The system starts no more threads.
        """
        # Not threading.Thread, whose start() waits for ever for a thread that finds no memory to begin with.
        _thread.start_new_thread(self._main, ())
        if self._semaphore.wait_function:
            self._slots[self._number * SLOT_BYTES // 8 + WORKER] = address_of(self._words)

    def _main(self) -> None:
        if self._semaphore.wait_function:
            self._words[Worker._fields.index("native_id")] = threading.get_native_id()
            entry_function("worker_main")(address_of(self._words))
        while True:
            self._semaphore.wait()
            entry_function("run_worker")(self._slot, self._number + 1)

    @property
    def wakes_itself(self) -> bool:
        """Whether compiled code can wake it."""
        return bool(self._semaphore.wait_function)

    def wake(self) -> None:
        """End its sleep, or its next one; for compiled code that can't."""
        if not self.wakes_itself:
            self._semaphore.post()


class _Workers:
    """The workers of this process.

    Attributes:
        memory, slots: Their slots, and the address of these.
        refusals: How many calls had fewer workers than they asked for, since the system started no more threads.
    """

    def __init__(self) -> None:
        memory = np.full((MAX_THREADS + 1) * SLOT_BYTES // 8, ASLEEP, np.int64)
        self.memory = memory[-address_of(memory) % SLOT_BYTES // 8 :]
        self.memory[WORKER :: SLOT_BYTES // 8] = self.memory[PAUSES :: SLOT_BYTES // 8] = 0
        self.slots = address_of(self.memory)
        self.refusals = 0
        self._all: list[_Worker] = []
        self._starting = threading.Lock()  # nobody waits for it: a signal handler in its midst would for ever

    def ensure(self, count: int) -> int:
        """Have `count` workers, if the system lets them start and no other call starts some. Return how many there are."""
        if len(self._all) < count and self._starting.acquire(blocking=False):
            try:
                self.memory[PAUSES :: SLOT_BYTES // 8] = _pauses()
                while len(self._all) < count:
                    worker = _Worker(self.memory, len(self._all))
                    worker.start()
                    self._all.append(worker)
            except RuntimeError:  # a limit on threads; the next call tries again
                self.refusals += 1
            finally:
                self._starting.release()
        return min(count, len(self._all))

    @property
    def wakes_itself(self) -> bool:
        """Whether compiled code wakes every worker."""
        return all(worker.wakes_itself for worker in self._all)

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


def compiled_slots() -> Words:
    """The workers' slots, for compiled code that keeps them."""
    return _workers.memory


def compiled_helpers(count: int) -> int | None:
    """How many workers there are of so many that compiled code wants; None where it could not wake them."""
    for name in ("work", "join"):
        entry_function(name)  # compiled before anybody knows of a job
    helpers = _workers.ensure(count)
    return helpers if helpers == 0 or _workers.wakes_itself else None


def run_chain(chain: Address, threads: int) -> None:
    """Run the jobs of a chain, one after the other. On return no other thread touches their memory any more.

    Args:
        chain: The address of its first job; nobody works on any.
        threads: The most that a job of it has, the caller included.
    """
    parallel_for = lent_parallel_for() if threads > 1 else None
    if parallel_for is not None:
        for job, head in _jobs(chain):
            entry_function("begin")(job, head[THREADS])
            if parallel_for(0, head[THREADS], 1, entry_address("share"), job):
                raise RuntimeError("threads: the framework's parallel_for failed")
        return
    for name in ("work", "join", "cancel"):
        entry_function(name)  # compiled before anybody else knows of a job
    workers = _workers
    helpers = workers.ensure(threads - 1)
    try:
        finish(entry_function("run_chain")(chain, workers.slots, helpers), helpers)
    except BaseException:
        abandon(chain, helpers)
        raise


def finish(job: Address, helpers: int) -> None:
    """Finish a job that run_chain of the compiled code has left to us, and run those that follow it.

    Args:
        job: What run_chain returned; 0: there is nothing to finish.
        helpers: The workers that it had.
    """
    workers = _workers
    while job:
        head = _head(job)
        workers.wake(head[TO_WAKE])
        while not entry_function("work")(job, 0, head[BATCH]):
            pass
        _join(job, workers.slots, helpers)
        following = job + 8 * head[NEXT]
        job = entry_function("run_chain")(following, workers.slots, helpers) if following != job else 0


def abandon(chain: Address, helpers: int) -> None:
    """Let nobody begin another task of any job of a chain, and wait until nobody works on one."""
    workers, interrupt = _workers, None
    for job, _ in _jobs(chain):
        try:
            _join(job, workers.slots, helpers, cancelling=True)
        except KeyboardInterrupt as reason:  # another one; the job is joined
            interrupt = reason
    workers.wake((1 << helpers) - 1)  # one may hold the taken back offer unwoken, and would never be woken again
    if interrupt is not None:
        raise interrupt


def _head(job: Address) -> Any:
    """The words in front of a job's tickets."""
    return (ctypes.c_int64 * TICKETS).from_address(job)


def _jobs(chain: Address) -> Iterator[tuple[Address, Any]]:
    """The jobs of a chain, with their heads."""
    job, step = chain, 1
    while step:
        head = _head(job)
        yield job, head
        step = head[NEXT]
        job += 8 * step


def _join(address: int, slots: int, helpers: int, cancelling: bool = False) -> None:
    """Wait for the helpers, even through Ctrl-C: they write to memory that the caller will free."""
    interrupt = None
    while True:
        try:
            if cancelling:
                entry_function("cancel")(address)
            if entry_function("join")(address, slots, helpers):
                break
        except KeyboardInterrupt as reason:
            interrupt, cancelling = reason, True
    if interrupt is not None:
        raise interrupt
