"""Memory for large NumPy results, used again once the last view of it is gone.

Fresh pages cost more than the arithmetic that fills them, and the allocator gives large freed blocks back to the system. So a
block comes back to this pool when nobody refers to its array any more, and the next result of its size gets it.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from lngrad.typing import Address, Bytes

__all__ = ["KEPT_FROM", "LINE", "empty_cache", "lease"]

KEPT_FROM = 1 << 19  # bytes; smaller blocks stay with the allocator, which keeps them
KEPT_BYTES = 1 << 29  # of all blocks in the pool together
LINE = 64  # bytes of a cache line; every block begins on one

_lock = threading.RLock()  # a block may come back in the middle of a call here: the garbage collector runs anywhere
_idle: dict[int, list[tuple[Bytes, Address]]] = {}  # by size: the memory, and where its first whole line begins
_idle_bytes = 0


def _forked() -> None:
    """A child has its own copy of the blocks; the lock may have been taken."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Lease:
    """What an array's memory belongs to: NumPy keeps it until the last view is gone, and then the block comes back."""

    __slots__ = ("__array_interface__", "_block", "_nbytes")

    def __init__(self, block: tuple[Bytes, Address], nbytes: int):
        self._block, self._nbytes = block, nbytes
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (block[1], False)}

    def __del__(self) -> None:
        global _idle_bytes
        with _lock:
            if _idle_bytes + self._nbytes <= KEPT_BYTES:
                _idle.setdefault(self._nbytes, []).append(self._block)
                _idle_bytes += self._nbytes


def lease(nbytes: int) -> Bytes:
    """Uninitialised bytes that begin on a cache line."""
    global _idle_bytes
    with _lock:
        blocks = _idle.get(nbytes)
        block = blocks.pop() if blocks else None
        if block is not None:
            _idle_bytes -= nbytes
    if block is None:
        memory = np.empty(nbytes + LINE, np.uint8)  # NumPy asks for huge pages under it
        address = memory.ctypes.data
        block = memory, address + -address % LINE
    return np.asarray(_Lease(block, nbytes))


def empty_cache() -> None:
    """Give back the memory that is kept for the next large NumPy results. Results in use keep theirs."""
    global _idle_bytes
    with _lock:
        _idle.clear()
        _idle_bytes = 0
