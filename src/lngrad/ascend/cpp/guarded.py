"""Arrays whose neighbours can't be touched: for kernels that run in a process of their own."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from lngrad.typing import Array

_ALIGNMENT = 32  # of global memory
_NO_ACCESS = 0  # PROT_NONE


def guarded(array: Array) -> Array:
    """Copy an array to pages of its own, its end at a page that can't be read or written.

    A kernel's write behind the array, through a pointer of C++, ends the process there instead of breaking other memory. The
    last 31 bytes before that page may be the array's neighbours, because it begins at a multiple of 32 bytes.
    """
    page, nbytes = mmap.PAGESIZE, array.nbytes
    pages = -(-max(nbytes, 1) // page) * page
    memory = np.frombuffer(mmap.mmap(-1, pages + page), np.uint8)
    end = memory.ctypes.data + pages
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), _NO_ACCESS) != 0:
        raise MemoryError("the page behind an array could not be guarded")
    start = (pages - nbytes) // _ALIGNMENT * _ALIGNMENT
    copy = memory[start : start + nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
