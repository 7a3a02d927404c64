"""Locks that survive a fork: nobody else has one while a process forks, and the child finds it free."""

from __future__ import annotations

import logging  # noqa: F401  # a fork takes its lock too, and Numba while it compiles: after ours, as it is registered first
import os
import threading
from contextlib import AbstractContextManager
from typing import Protocol


class Lock(Protocol):
    """A lock that a fork can hold."""

    def acquire(self) -> object: ...

    def release(self) -> object: ...


_held_by_forks: list[Lock] = []
_taken: list[list[Lock]] = []  # for each fork that is going on in the thread that has them all


def hold_while_forking(lock: Lock) -> None:
    """Have a fork wait until no other thread has a lock, and free it in the parent and in the child.

    A fork takes locks in the reverse order of these calls: those of a module before those of modules that it imports, as calls
    do.

    Args:
        lock: A thread may take it again while it has it. It is held so for ever: for a module's own state.
    """
    _held_by_forks.append(lock)


def fork_safe_lock() -> AbstractContextManager[bool]:
    """A lock that a forked child finds free, and what it guards whole. For a module's own state: it is never given back.

    A thread may take it again while it has it: the garbage collector and signal handlers run user code anywhere.
    """
    lock = threading.RLock()
    hold_while_forking(lock)
    return lock


def _before_fork() -> None:
    while True:
        locks = _held_by_forks[::-1]
        for lock in locks:
            lock.acquire()
        if len(locks) == len(_held_by_forks):
            _taken.append(locks)
            return
        _release(locks)  # while this thread waited, a module was imported that has one more


def _after_fork() -> None:
    _release(_taken.pop())


def _release(locks: list[Lock]) -> None:
    for lock in reversed(locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

importing = fork_safe_lock()
"""Taken where a call imports modules: Python's own lock of a module that another thread imports is never free in a child.

Nothing that takes another of these locks may be imported under it: a fork takes it last.
"""
