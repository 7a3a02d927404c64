"""The C program's memory as seen from here, when both are one process; and the address ranges that it must not follow.

``read``, ``view`` and ``put`` refuse what the program has no right to read or write, in the place of a crash.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol

LARGEST = 1 << 47  # bytes that a process can have on the machines that this runs on

# Linux's madvise: bring pages in as if they were read, or written, without changing them; fails where that would.
POPULATE_READ, POPULATE_WRITE = 22, 23
PROT_NONE = 0
RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000 | 0x10_0000  # MAP_NORESERVE, MAP_FIXED_NOREPLACE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p


class NoSuchMemory(Exception):
    """The program has no such memory, or may not write it."""


class HostMemory(Protocol):
    """Access to the C program's memory.

    Attributes:
        at_once: whether what a call fills must be there when it returns, and can't be filled later by a stream.
    """

    at_once: bool

    def read(self, address: int, nbytes: int) -> bytes:
        """Return a copy of bytes. Raises NoSuchMemory."""
        ...

    def view(self, address: int, nbytes: int, touched: int, writable: bool) -> Any:
        """Return a buffer of nbytes, of which the first `touched` are read, or filled. Raises NoSuchMemory."""
        ...

    def put(self, address: int, view: Any, touched: int) -> None:
        """Bring what was filled in to the program."""
        ...

    def lend(self, buffer: Any) -> int:
        """Return the program's address of host memory that was allocated for it."""
        ...

    def take_back(self, address: int) -> int:
        """Return the address here of such memory; the program's own is no longer used."""
        ...


class InProcess:
    """The memory of this very process."""

    at_once = False

    def read(self, address: int, nbytes: int) -> bytes:
        _require_access(address, nbytes, POPULATE_READ)
        return ctypes.string_at(address, nbytes)

    def view(self, address: int, nbytes: int, touched: int, writable: bool) -> Any:
        if nbytes >= LARGEST:
            raise NoSuchMemory
        _require_access(address, min(touched, nbytes), POPULATE_WRITE if writable else POPULATE_READ)
        return (ctypes.c_uint8 * nbytes).from_address(address)

    def put(self, address: int, view: Any, touched: int) -> None:
        """Nothing to do: the view is the memory."""

    def lend(self, buffer: Any) -> int:
        return int(buffer.ctypes.data)

    def take_back(self, address: int) -> int:
        return address


def reserve(address: int, nbytes: int) -> None:
    """Keep a range of addresses free of memory: whoever follows one gets a segmentation fault, as on a device.

    Costs no memory. Where the system does not allow it, the range is as it was: free, in all likelihood.
    """
    _libc.mmap(address, nbytes, PROT_NONE, RESERVED, -1, 0)


def _require_access(address: int, nbytes: int, how: int) -> None:
    if not 0 <= nbytes < LARGEST or not 0 < address < LARGEST:
        raise NoSuchMemory
    if nbytes == 0 or not _can_ask():
        return
    start = address - address % mmap.PAGESIZE
    if _libc.madvise(start, address + nbytes - start, how) != 0:
        raise NoSuchMemory


def _can_ask() -> bool:
    """Whether this kernel (Linux 5.14 or newer) can say what is accessible. Without it, a wild pointer is a crash."""
    global _asked
    if _asked is None:
        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_uint8.from_buffer(page))
        _asked = _libc.madvise(address, mmap.PAGESIZE, POPULATE_READ) == 0
    return _asked


_asked: bool | None = None
