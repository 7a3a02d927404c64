"""What the pointers of a C program lead to: objects here, by the numbers that it has in their place, and its own memory.

A handle's number is never handed out twice, and lies where no program can have memory, so that an old or a foreign
pointer is recognised and never followed. It says of which kind it is: one that was destroyed is still told from one that
never was. Access to memory refuses what the program has no right to read or write, in the place of a crash.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from itertools import count
from typing import Any

from lngrad_ascend import acl, aclnn
from lngrad_ascend.prototypes import HANDLES

FIRST_HANDLE = 0x1100_0000_0000
STEP = 16  # aligned, as pointers to objects are
KIND_SPAN = 1 << 36  # numbers of one kind
HANDLE_SPAN = KIND_SPAN * len(HANDLES)


class foreign_pointer:
    """Stands for the object of a pointer that is no handle; every interface refuses it."""


_FOREIGN = foreign_pointer()


class Handles:
    """All objects that C programs have handles of, by number."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # by the object's id; it lives while it is in _objects
        self._next = {
            kind: count(FIRST_HANDLE + position * KIND_SPAN + STEP, STEP) for position, kind in enumerate(HANDLES)
        }

    def number_of(self, kind: str, thing: Any) -> int:
        """Return the number of an object, the same one every time; 0 for None."""
        if thing is None:
            return 0
        number = self._numbers.get(id(thing))
        if number is None:
            number = next(self._next[kind])
            self._objects[number] = thing
            self._numbers[id(thing)] = number
        return number

    def object_of(self, number: int) -> Any:
        """Return the object of a number, None for 0; for others an object that every interface refuses by its own text."""
        if number == 0:
            return None
        found = self._objects.get(number)
        return self._absent(number) if found is None else found

    def forget_destroyed(self, number: int, thing: Any) -> None:
        """Forget an object that a call has ended."""
        if number and not getattr(thing, "alive", True) and self._objects.pop(number, None) is not None:
            self._numbers.pop(id(thing), None)

    def _absent(self, number: int) -> Any:
        """A destroyed object of the number's kind, or a foreign one."""
        position, place = divmod(number - FIRST_HANDLE, KIND_SPAN)
        if not 0 <= position < len(HANDLES) or place % STEP:
            return _FOREIGN
        kind = getattr(acl, HANDLES[position], None) or getattr(aclnn, HANDLES[position], None)
        if kind is None:
            return _FOREIGN
        destroyed = kind.__new__(kind)
        destroyed.alive = False
        return destroyed


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


def read(address: int, nbytes: int) -> bytes:
    """Return a copy of bytes of the program. Raises NoSuchMemory."""
    _require_access(address, nbytes, POPULATE_READ)
    return ctypes.string_at(address, nbytes)


def view(address: int, nbytes: int, touched: int, writable: bool) -> Any:
    """Return nbytes of the program as a buffer, of which the first `touched` are read, or filled. Raises NoSuchMemory."""
    _check_range(address, nbytes)
    _require_access(address, min(touched, nbytes), POPULATE_WRITE if writable else POPULATE_READ)
    return (ctypes.c_uint8 * nbytes).from_address(address)


def reserve(address: int, nbytes: int) -> None:
    """Keep a range of addresses free of memory: whoever follows one gets a segmentation fault, as on a device.

    Costs no memory. Where the system does not allow it, the range is as it was: free, in all likelihood.
    """
    _libc.mmap(address, nbytes, PROT_NONE, RESERVED, -1, 0)


def _check_range(address: int, nbytes: int) -> None:
    """Raise NoSuchMemory where no process can have this memory."""
    if not 0 <= nbytes < LARGEST or not 0 < address < LARGEST:
        raise NoSuchMemory


def _require_access(address: int, nbytes: int, how: int) -> None:
    _check_range(address, nbytes)
    start = address - address % mmap.PAGESIZE
    if nbytes and _can_ask() and _libc.madvise(start, address + nbytes - start, how) != 0:
        raise NoSuchMemory


@cache
def _can_ask() -> bool:
    """Whether this kernel (Linux 5.14 or newer) can say what is accessible. Without it, a wild pointer is a crash."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_uint8.from_buffer(page))
    return bool(_libc.madvise(address, mmap.PAGESIZE, POPULATE_READ) == 0)
