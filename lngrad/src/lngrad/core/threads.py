"""Threads: how many a call may use, and whose they are.

A call may use what the caller set, else what the machine grants this process.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from operator import index
from pathlib import Path
from typing import TypeAlias

from lngrad.errors import NumberError

MAX_THREADS = 64

chosen = ctypes.c_int64(0)  # what set_num_threads was given; 0: nobody chose. Compiled code looks there too


def set_num_threads(n: int) -> None:
    """Let every later call use at most n threads. The result has the same bits for every n.

    Args:
        n: At least 1; more than 64 count as 64.

    Raises:
        NumberError: n is no integer, or less than 1.
    """
    try:
        count = index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise NumberError(f"n: expected at least 1 thread, got {n!r}")
    chosen.value = min(count, MAX_THREADS)


def get_num_threads() -> int:
    """The number set by set_num_threads, else the least of OMP_NUM_THREADS, the CPU affinity and the cgroup's CPU quota."""
    return chosen.value or granted_threads()


@cache
def granted_threads() -> int:
    """The least of OMP_NUM_THREADS, the CPU affinity and the cgroup's CPU quota, as they were when first asked."""
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MAX_THREADS]
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdigit() and int(wanted) > 0:
        limits.append(int(wanted))
    limits.extend(_cgroup_quota())
    return max(1, min(limits))


def _cgroup_quota() -> list[int]:
    """The CPU quota of this process's control group in whole cores, for version 2 and version 1 hierarchies."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    quotas = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        try:
            if controllers == "":
                quota, period = (Path("/sys/fs/cgroup") / path.lstrip("/") / "cpu.max").read_text().split()
            elif "cpu" in controllers.split(","):
                folder = Path("/sys/fs/cgroup/cpu") / path.lstrip("/")
                quota, period = (folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()
            else:
                continue
            if quota != "max" and int(quota) > 0:
                quotas.append(math.ceil(int(quota) / int(period)))
        except (OSError, ValueError):
            continue
    return quotas


# (first, stop, grain, function, argument) -> 0: calls the C function (first, stop, argument) at an address for parts of
# first … stop-1, each number in one part, and returns when all have ended.
ParallelFor: TypeAlias = Callable[[int, int, int, int, int], int]


class _Lent(threading.local):
    """The threads that help with a Python thread's jobs."""

    parallel_for: ParallelFor | None = None


_lent = _Lent()


def lent_parallel_for() -> ParallelFor | None:
    """The function that shares this thread's jobs, or None for lngrad's own workers."""
    return _lent.parallel_for


class use_parallel_for:
    """A context in which a framework's threads help with this thread's jobs, and ours sleep on.

    A program that computes with threads of its own between our calls keeps them awake for a while, as we do ours: the
    two would take the cores from each other.

    Args:
        parallel_for: The framework's; None: only lngrad's own workers help.
    """

    def __init__(self, parallel_for: ParallelFor | None):
        self._parallel_for = parallel_for

    def __enter__(self) -> None:
        self._before = _lent.parallel_for
        _lent.parallel_for = self._parallel_for

    def __exit__(self, *exception: object) -> None:
        _lent.parallel_for = self._before


_TORCH_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
_torch_threads_are_gone = False  # in a child of a process that had loaded torch: its OpenMP would wait for ever


def _lose_torch_threads() -> None:
    global _torch_threads_are_gone
    _torch_threads_are_gone = "torch" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_torch_threads)


def torch_parallel_for() -> ParallelFor | None:
    """torch_parallel_for of torch/csrc/stable/c/shim.h (torch 2.10 and later); None without it, and in a forked child.

    torch's own threads run our jobs by it. torch must be loaded; it is not imported here.
    """
    return None if _torch_threads_are_gone else _torch_parallel_for()


@cache
def _torch_parallel_for() -> ParallelFor | None:
    folder = Path(str(sys.modules["torch"].__file__)).parent / "lib"
    for name in _TORCH_LIBRARIES:
        try:
            function = ctypes.CDLL(str(folder / name)).torch_parallel_for
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int32
        function.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
        return function
    return None


def torch_thread_count() -> int:
    """The number of threads that both lngrad and torch allow; torch must be loaded."""
    return min(get_num_threads(), int(sys.modules["torch"].get_num_threads()))
