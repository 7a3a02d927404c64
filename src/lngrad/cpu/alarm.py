"""Alarms: a thread sleeps until another one rings. And how the system is told on which processor it wakes."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from lngrad.typing import Address

_SEMAPHORE_WORDS = 16  # 128 bytes; the largest sem_t that is known to us has 32


@cache
def _library() -> Any:
    """The C library, if it has POSIX semaphores."""
    return _library_with("sem_init", "sem_wait", "sem_post")


@cache
def _processors() -> Any:
    """The C library, if it knows processors by their numbers, as Linux's do."""
    return _library_with("sched_getcpu", "sched_getaffinity", "sched_setaffinity")


def _library_with(*functions: str) -> Any:
    try:
        library = ctypes.CDLL(None)
        for name in functions:
            getattr(library, name)
    except (TypeError, OSError, AttributeError):
        return None
    return library


def _address_of(function: Any) -> Address:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def affinity_functions() -> tuple[Address, Address, Address]:
    """Where the C functions sched_getcpu, sched_getaffinity and sched_setaffinity lie; 0 where there are none."""
    library = _processors()
    if library is None:
        return 0, 0, 0
    return (
        _address_of(library.sched_getcpu),
        _address_of(library.sched_getaffinity),
        _address_of(library.sched_setaffinity),
    )


class Alarm:
    """An alarm that one thread waits for and any other may ring: by C functions where the system has semaphores, elsewhere
    by `sleep` and `ring`, whose sleeper must get the GIL when it wakes.

    Attributes:
        wait: The address of the C function, int (int64 address), that sleeps until the alarm rings and returns 0, or else was
            disturbed by a signal. 0 where there is none.
        post: The address of the C function, int (int64 address), that rings it. 0 where `wait` is.
        address: What these functions are called with.
    """

    def __init__(self) -> None:
        self._semaphore = (ctypes.c_int64 * _SEMAPHORE_WORDS)()
        self.address: Address = ctypes.addressof(self._semaphore)
        self.wait: Address = 0
        self.post: Address = 0
        library = _library()
        if library is not None and library.sem_init(self._semaphore, 0, 0) == 0:  # macOS has the name, and refuses
            self.wait = _address_of(library.sem_wait)
            self.post = _address_of(library.sem_post)
        else:
            self._lock = threading.Lock()
            self._lock.acquire()

    def ring(self) -> None:
        """Wake the sleeper, or whoever sleeps next, where `wait` is 0."""
        with suppress(RuntimeError):  # it has rung already
            self._lock.release()

    def sleep(self) -> None:
        """Sleep until the alarm rings, where `wait` is 0."""
        self._lock.acquire()
