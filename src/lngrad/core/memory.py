"""Memory for NumPy results, used again once the last view of it is gone.

Fresh pages cost more than the arithmetic that fills them, and the allocator gives large freed blocks back to the system. So a
block comes back to this pool when nobody refers to its array any more, and the next result of its size gets it.

Blocks of some KB have the same fate where they lie at the end of the heap: each is given back, and its pages are new again.
For these a return to the pool would cost more than all the rest of a call. They stay in a queue, and the one that was used
longest ago is taken if nobody refers to it.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from lngrad.typing import Address, Array, Bytes, Shape

KEPT_FROM = 1 << 19  # bytes; smaller blocks stay with the allocator, which keeps them
KEPT_BYTES = 1 << 29  # of all blocks in the pool together
LINE = 64  # bytes of a cache line; every block begins on one

SPARE_BYTES = 1 << 25  # of all smaller blocks in queues together
SPARES = 4  # of one kind
KINDS = 512  # of shape and dtype

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


_Spare = tuple[Bytes, Array]  # memory, and an array on it that results are views of

_spares: dict[tuple[Shape, np.dtype[Any]], deque[_Spare]] = {}  # by shape and dtype, used longest ago first
_spare_bytes = 0


def spares(shape: Shape, dtype: np.dtype[Any]) -> Callable[[], Array]:
    """A function that makes uninitialised arrays of a shape and dtype that begin on a cache line.

    Threads need no lock: a block that one has taken out of the queue is not another's, and before it is put back there is a
    view, which holds its memory.
    """
    global _spare_bytes
    if len(_spares) >= KINDS:
        _spares.clear()  # who makes results of these kinds again and again keeps their queues
        _spare_bytes = 0
    queue = _spares.setdefault((shape, dtype), deque())
    nbytes = math.prod(shape) * dtype.itemsize

    def make() -> Array:
        global _spare_bytes
        for _ in range(len(queue)):
            try:
                spare = queue.popleft()
            except IndexError:  # other threads have them all
                break
            memory, array = spare
            is_idle = getrefcount(memory) == _ALONE
            view = array[...]
            queue.append(spare)
            if is_idle:
                return view
        spare = _fresh(shape, dtype, nbytes)
        view = spare[1][...]
        if len(queue) < SPARES and _spare_bytes + nbytes <= SPARE_BYTES:
            _spare_bytes += nbytes
            queue.append(spare)
        return view

    return make


def _fresh(shape: Shape, dtype: np.dtype[Any], nbytes: int) -> _Spare:
    memory = np.empty(nbytes + LINE, np.uint8)
    return memory, np.ndarray(shape, dtype, memory, -memory.ctypes.data % LINE)


def _references(spare: _Spare) -> int:
    """How often Python refers to a block's memory, in the words of `make`; a release may count its own hold or not."""
    memory, _ = spare
    return getrefcount(memory)


_ALONE = _references(_fresh((1,), np.dtype(np.uint8), 1))  # of a block that nobody uses


def empty_cache() -> None:
    """Give back the memory that is kept for the next NumPy results. Results in use keep theirs."""
    global _idle_bytes, _spare_bytes
    with _lock:
        _idle.clear()
        _idle_bytes = 0
        for queue in _spares.values():
            queue.clear()
        _spare_bytes = 0
