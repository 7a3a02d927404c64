"""Compiled functions by name: found on disk and put into memory without a compiler, or else compiled and kept.

Numba takes half a second to import, so it is imported when something must be compiled and not before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from threading import Lock

from lngrad.cpu import cache as kept
from lngrad.cpu.jobs import POOL
from lngrad.cpu.machine_code import NotLinked, link

_compiling = Lock()
_addresses: dict[str, int] = {}


def task_function(name: str, dtype: str, accumulator: str) -> int:
    """The address of a task function, void (int64 arguments, int64 task, int64 thread).

    Args:
        name: Of tasks.TASK_FUNCTIONS or roofline.TRIADS.
        dtype: Of the elements.
        accumulator: Of the sums: float32 or float64.
    """
    return _address(name, dtype, accumulator)


def copy_function(name: str, outer: str, inner: str) -> int:
    """The address of a copy of rows, void (int64 base, table, first, rows, N, packed).

    Args:
        name: Of tasks.COPY_FUNCTIONS.
        outer: The dtype in which the rows are stored.
        inner: The dtype in which a kernel takes them.
    """
    return _address(name, outer, inner)


@cache
def pool_address(name: str) -> int:
    """The address of one of jobs.POOL."""
    return _address(name, "", "")


@cache
def pool_function(name: str) -> Callable[..., int]:
    """One of jobs.POOL; a call gives the GIL away."""
    parameters, returns = POOL[name]
    result = ctypes.c_int64 if returns else None
    return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * len(parameters.split()))(pool_address(name))


def _address(name: str, dtype: str, accumulator: str) -> int:
    kernel = "_".join(filter(None, (name, dtype, accumulator)))
    with _compiling:
        if kernel not in _addresses:
            code = kept.load(kernel)
            if code is None:
                from lngrad.cpu.compiling import compile_kernel

                code = compile_kernel(kernel, name, dtype, accumulator)
                kept.save(kernel, code)
            _addresses[kernel] = _linked(kernel, code)
        return _addresses[kernel]


def _linked(kernel: str, code: bytes) -> int:
    try:
        return link(code, kernel)
    except NotLinked:  # not this system's object files: LLVM knows them all
        from lngrad.cpu.compiling import link_by_llvm

        return link_by_llvm(kernel, code)
