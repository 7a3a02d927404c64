"""Alarms: a thread sleeps until another one rings."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from lngrad.typing import Address

__all__ = ["Alarm"]

_SEMAPHORE_WORDS = 16  # 128 bytes; the largest sem_t that is known to us has 32


@cache
def _library() -> Any:
    """The C library, if it has POSIX semaphores."""
    try:
        library = ctypes.CDLL(None)
        library.sem_init, library.sem_wait, library.sem_post  # noqa: B018  (an AttributeError if one is missing)
    except (TypeError, OSError, AttributeError):
        return None
    return library


class Alarm:
    """An alarm that one thread waits for and any other may ring.

    Attributes:
        wait: The address of the C function, int (int64 address), that sleeps until the alarm rings and returns 0, or else was
            disturbed by a signal. 0 where the system has no such function: then the sleeper calls `sleep`, and must get the
            GIL when it wakes.
        address: What that function is called with.
    """

    def __init__(self) -> None:
        self._semaphore = (ctypes.c_int64 * _SEMAPHORE_WORDS)()
        self.address: Address = ctypes.addressof(self._semaphore)
        self.wait: Address = 0
        library = _library()
        if library is not None and library.sem_init(self._semaphore, 0, 0) == 0:  # macOS has the name, and refuses
            self.wait = ctypes.cast(library.sem_wait, ctypes.c_void_p).value or 0
            self._post = library.sem_post
        else:
            self._lock = threading.Lock()
            self._lock.acquire()

    def ring(self) -> None:
        """Wake the sleeper, or whoever sleeps next. Once only until it has woken."""
        if self.wait:
            self._post(self._semaphore)
        else:
            self._lock.release()

    def sleep(self) -> None:
        """Sleep until the alarm rings, where `wait` is 0."""
        self._lock.acquire()
