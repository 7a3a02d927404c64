"""The memory's own speed: read two arrays and write one past the caches, which is what a backward must do at the least."""

from functools import cache

from numba import cfunc

from lngrad.kernels.numba_cpu.cache import OPTIONS
from lngrad.kernels.numba_cpu.pool import words
from lngrad.kernels.numba_cpu.simd import LANES, TAGS, load, store, stream
from lngrad.kernels.numba_cpu.sweeps import plain
from lngrad.kernels.numba_cpu.tasks import TASK

BLOCK = 1 << 16  # float32 elements a task goes through


@plain
def triad(tag, arguments, task, streaming):
    """result = a + b for one block of float32, whole vectors only."""
    a, b, result, n = words(arguments, 4)
    for j in range(task * BLOCK, min(n, (task + 1) * BLOCK), LANES):
        total = load(tag, a, j) + load(tag, b, j)
        if streaming is None:
            store(tag, result, j, total)
        else:
            stream(tag, result, j, total)


def _streamed(tag):
    @cfunc(TASK, **OPTIONS)
    def triad_streamed(arguments, task, thread):
        triad(tag, arguments, task, 1)

    return triad_streamed


def _stored(tag):
    @cfunc(TASK, **OPTIONS)
    def triad_stored(arguments, task, thread):
        triad(tag, arguments, task, None)

    return triad_stored


@cache
def triad_function(streaming: bool) -> int:
    """The address of the task function; arguments: three addresses aligned to 32 bytes, and the number of elements."""
    return int((_streamed if streaming else _stored)(TAGS["float32"]).address)
