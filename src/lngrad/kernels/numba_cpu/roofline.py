"""The memory's own speed: read two arrays and write one past the caches, which is what a backward must do at the least."""

from functools import cache

from numba import cfunc

from lngrad.kernels.numba_cpu.cache import OPTIONS
from lngrad.kernels.numba_cpu.jobs import LANES, Triad
from lngrad.kernels.numba_cpu.pool import read
from lngrad.kernels.numba_cpu.simd import TAGS, load, store, stream
from lngrad.kernels.numba_cpu.sweeps import plain
from lngrad.kernels.numba_cpu.tasks import TASK

BLOCK = 1 << 16  # float32 elements a task goes through


@plain
def triad(tag, arguments, task, streaming):
    """result = a + b for one block of float32, whole vectors only."""
    t = read(Triad, arguments)
    for j in range(task * BLOCK, min(t.elements, (task + 1) * BLOCK), LANES):
        total = load(tag, t.a, j) + load(tag, t.b, j)
        if streaming is None:
            store(tag, t.result, j, total)
        else:
            stream(tag, t.result, j, total)


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
