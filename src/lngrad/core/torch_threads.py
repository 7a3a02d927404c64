"""torch's own threads, lent to our jobs through its stable C interface, and how many of them.

torch is not imported here: a torch tensor in the caller's hands proves that it is loaded already.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from lngrad.core.threads import ParallelFor, get_num_threads

_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")


@cache
def parallel_for() -> ParallelFor | None:
    """torch_parallel_for of torch/csrc/stable/c/shim.h (torch 2.10 and later), or None where it is not found."""
    folder = Path(str(sys.modules["torch"].__file__)).parent / "lib"
    for name in _LIBRARIES:
        try:
            function = ctypes.CDLL(str(folder / name)).torch_parallel_for
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int32
        function.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
        return function
    return None


def thread_count() -> int:
    """As many threads as both lngrad and torch allow."""
    return min(get_num_threads(), int(sys.modules["torch"].get_num_threads()))
