"""Huge pages for large results: a fresh page of 4 KB costs more than the arithmetic that fills it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

HUGE_BYTES = 1 << 22  # from here on a fresh result is asked to lie on huge pages, as NumPy asks for its arrays


def _advise() -> Callable[[int, int], object] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return lambda start, nbytes: madvise(start, nbytes, mmap.MADV_HUGEPAGE)


_huge = _advise()


def advise_huge(start: int, nbytes: int) -> None:
    """Ask for huge pages under whole pages of some memory, if it is large. A refusal costs speed alone.

    Args:
        start: The memory's address.
        nbytes: Its size; less than HUGE_BYTES is left alone.
    """
    if _huge is not None and nbytes >= HUGE_BYTES:
        first = start + -start % mmap.PAGESIZE
        _huge(first, (start + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE)
