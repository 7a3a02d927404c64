"""Memory that kernels touch by pointers of C++: arrays whose neighbours can't be touched, and the device's own addresses."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from lngrad.typing import Address, Array, Bytes

_ALIGNMENT = 32  # of global memory
_NO_ACCESS = 0  # PROT_NONE
_MOST_BYTES = 1 << 28  # of device memory that is there for pointers


def guarded(array: Array) -> Array:
    """Copy an array to pages of its own, its end at a page that can't be read or written.

    A kernel's write behind the array, through a pointer of C++, ends the process there instead of breaking other memory. The
    last 31 bytes before that page may be the array's neighbours, because it begins at a multiple of 32 bytes.
    """
    page, nbytes = mmap.PAGESIZE, array.nbytes
    pages = -(-max(nbytes, 1) // page) * page
    memory = np.frombuffer(mmap.mmap(-1, pages + page), np.uint8)
    end = memory.ctypes.data + pages
    if not _protect(end, page, _NO_ACCESS):
        raise MemoryError("the page behind an array could not be guarded")
    start = (pages - nbytes) // _ALIGNMENT * _ALIGNMENT
    copy = memory[start : start + nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@contextmanager
def opened(memory: Mapping[Address, Bytes]) -> Iterator[dict[Address, Bytes]]:
    """Have device memory at its own addresses as long as a kernel runs, for those who read a tiling through a plain pointer.

    Yields the arrays that have the bytes in this time; what is written there is in `memory` afterwards. Where there is more of
    it than 256 MiB, or the addresses are not reserved, those of `memory` itself: a pointer to them is a crash, as for the host.
    """
    page = mmap.PAGESIZE
    pages = {at: (at - at % page, at % page + data.nbytes) for at, data in memory.items()}
    if sum(data.nbytes for data in memory.values()) > _MOST_BYTES or not all(
        _protect(*place, mmap.PROT_READ | mmap.PROT_WRITE) for place in pages.values()
    ):
        yield dict(memory)
        return
    views = {at: np.ctypeslib.as_array((ctypes.c_uint8 * data.nbytes).from_address(at)) for at, data in memory.items()}
    for at, view in views.items():
        view[...] = memory[at]
    try:
        yield views
    finally:
        for at, view in views.items():
            memory[at][...] = view
        for place in pages.values():
            _protect(*place, _NO_ACCESS)


def _protect(start: Address, nbytes: int, how: int) -> bool:
    """Say who may touch pages. Returns whether they are there."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    return bool(protect(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), how) == 0)
