"""Memory for NumPy results, used again once the last view of it is gone.

Fresh pages cost more than the arithmetic that fills them, and the allocator gives large freed blocks back to the system. So a
block comes back to this pool when nobody refers to its array any more, and the next result of its size gets it. What was used
longest ago goes first where the pool is full, and all of it where the system has no more memory.

Blocks of some KB have the same fate where they lie at the end of the heap: each is given back, and its pages are new again.
For these a return to the pool would cost more than all the rest of a call, and for some hundred KB a tenth of it. They stay in
a queue, and the one that was used longest ago is taken if nobody refers to it. Where queues are full, the larger ones of them
come from the pool.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from lngrad.support.locks import fork_safe_lock
from lngrad.typing import Address, Array, Bytes, Shape

KEPT_FROM = 1 << 19  # bytes; smaller blocks that are not in a queue stay with the allocator, which keeps them
KEPT_BYTES = 1 << 29  # of all blocks in the pool together
LINE = 64  # bytes of a cache line; every block begins on one

QUEUED_UP_TO = 1 << 22  # bytes of a block
QUEUED_BYTES = 1 << 25  # of all blocks in queues together, and once more of those from KEPT_FROM on
QUEUE_BLOCKS = 4  # of one kind
KINDS = 512  # of shape and dtype

HUGE_BYTES = 1 << 22  # from here on fresh memory is asked to lie on huge pages, as NumPy asks for its arrays

_Block = tuple[Bytes, Address]  # memory, and where its first whole line begins

_lock = fork_safe_lock()
_idle: dict[int, list[_Block]] = {}  # by size, used longest ago first


def idle_bytes() -> int:
    """Bytes of all blocks in the pool, counted: a number that is kept beside them would be wrong after an interrupt."""
    return sum(size * len(blocks) for size, blocks in list(_idle.items()))


class _Owner:
    """The owner of an array's memory: NumPy keeps it until the last view is gone, and then the block comes back."""

    __slots__ = ("__array_interface__", "_block", "_nbytes")

    def __init__(self, block: _Block, nbytes: int):
        self._nbytes, self._block = nbytes, block
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (block[1], False)}

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is None:
            return  # it was interrupted before it had one
        with _lock:
            while idle_bytes() + self._nbytes > KEPT_BYTES:
                oldest = next(iter(_idle), self._nbytes)
                if oldest == self._nbytes:
                    return  # the other sizes are in use, or this block alone is too large
                del _idle[oldest]
            _idle.setdefault(self._nbytes, []).append(block)


def pooled_bytes(nbytes: int) -> Bytes:
    """Uninitialised bytes that begin on a cache line.

    Raises:
        MemoryError: The system has none, even with the pool empty.
    """
    block = None
    with _lock:  # but the garbage collector may bring blocks back in between: each step leaves the table whole
        blocks = _idle.pop(nbytes, None)
        if blocks:
            block = blocks.pop()
        if blocks:
            _idle.setdefault(nbytes, []).extend(blocks)  # behind all others: it is used
    if block is None:
        memory = allocated(nbytes + LINE)  # NumPy asks for huge pages under it
        address = memory.ctypes.data
        block = memory, address + -address % LINE
    return np.asarray(_Owner(block, nbytes))


def allocated(nbytes: int) -> Bytes:
    """Uninitialised bytes; where the system has no more, what the pool keeps is given back first."""
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError:
        empty_cache()
        return np.empty(nbytes, np.uint8)


_SmallBlock = tuple[Bytes, Array]  # memory, and an array on it that results are views of

_queues: dict[tuple[Shape, np.dtype[Any]], deque[_SmallBlock]] = {}  # by shape and dtype, used longest ago first


def queued_bytes(is_large: bool) -> int:
    """Bytes of the blocks in queues below KEPT_FROM, or from there on: these must not take the room of all others."""
    sizes = ((math.prod(shape) * dtype.itemsize, len(queue)) for (shape, dtype), queue in list(_queues.items()))
    return sum(nbytes * count for nbytes, count in sizes if (nbytes >= KEPT_FROM) == is_large)


def block_maker(shape: Shape, dtype: np.dtype[Any]) -> Callable[[], Array]:
    """A function that makes uninitialised arrays of a shape and dtype that begin on a cache line, from a queue or the pool.

    Threads need no lock: a block that one has taken out of the queue is not another's, and before it is put back there is a
    view, which holds its memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    is_large = nbytes >= KEPT_FROM

    def from_pool() -> Array:
        return pooled_bytes(nbytes).view(dtype).reshape(shape)

    if nbytes > QUEUED_UP_TO:
        return from_pool
    if len(_queues) >= KINDS:
        _queues.clear()  # who makes results of these kinds again and again keeps their queues
    queue = _queues.setdefault((shape, dtype), deque())

    def make() -> Array:
        for _ in range(len(queue)):
            try:
                block = queue.popleft()
            except IndexError:  # other threads have them all
                break
            memory, array = block
            is_idle = getrefcount(memory) == _ALONE
            view = array[...]
            queue.append(block)
            if is_idle:
                return view
        is_full = len(queue) >= QUEUE_BLOCKS or queued_bytes(is_large) + nbytes > QUEUED_BYTES
        if is_full and is_large:
            return from_pool()
        block = _fresh(shape, dtype, nbytes)
        view = block[1][...]
        if not is_full:
            queue.append(block)
        return view

    return make


def _fresh(shape: Shape, dtype: np.dtype[Any], nbytes: int) -> _SmallBlock:
    memory = allocated(nbytes + LINE)
    return memory, np.ndarray(shape, dtype, memory, -memory.ctypes.data % LINE)


def _references(block: _SmallBlock) -> int:
    """The number of references to a block's memory, in the words of `make`; a release may count its own hold or not."""
    memory, _ = block
    return getrefcount(memory)


_ALONE = _references(_fresh((1,), np.dtype(np.uint8), 1))  # of a block that nobody uses


def empty_cache() -> None:
    """Give back the memory that is kept for the next NumPy results. Results in use keep theirs."""
    with _lock:
        _idle.clear()
        for queue in _queues.values():
            queue.clear()


def _madvise() -> Any:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


madvise = _madvise()  # the C library's, where the system has huge pages


def advise_huge(start: int, nbytes: int) -> None:
    """Ask for huge pages under whole pages of some memory, if it is large. A refusal costs speed alone.

    Args:
        start: The memory's address.
        nbytes: Its size; less than HUGE_BYTES is left alone.
    """
    if madvise is not None and nbytes >= HUGE_BYTES:
        first = start + -start % mmap.PAGESIZE
        madvise(first, (start + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
