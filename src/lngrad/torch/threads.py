"""torch's own threads, lent to our jobs through its stable C interface, and how many of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from lngrad.system.threads import get_num_threads

__all__ = ["parallel_for", "thread_count"]

_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")


def _find() -> Callable[[int, int, int, int, int], int] | None:
    """torch_parallel_for of torch/csrc/stable/c/shim.h (torch 2.10 and later), or None where it is not found."""
    for name in _LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / name
        try:
            function = ctypes.CDLL(str(path)).torch_parallel_for
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int32
        function.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
        return function
    return None


parallel_for = _find()


def thread_count() -> int:
    """As many threads as both lngrad and torch allow."""
    return min(get_num_threads(), torch.get_num_threads())  # type: ignore[no-any-return]
