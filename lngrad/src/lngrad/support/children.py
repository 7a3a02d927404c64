"""What this process starts, and what that starts: it ends with us, and can't write our memory. On Linux; elsewhere nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

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
        if not (left := [one for one, session in children() if not kept(one, session)]):
            return
        for one in left:
            with suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(one, signal.SIGKILL)
                os.waitpid(one, 0)


def children() -> Iterator[tuple[int, int]]:
    """Our children, and what was left to us, with their sessions."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(parent) == os.getpid():
                yield int(path.parent.name), int(session)
