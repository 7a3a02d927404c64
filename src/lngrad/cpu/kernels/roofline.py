"""The memory's own speed: read two arrays and write one past the caches, which is what a backward must do at the least."""

from lngrad.cpu.jobs import LANES, TRIAD_BLOCK, Triad
from lngrad.cpu.kernels.functions import plain
from lngrad.cpu.kernels.pool import read
from lngrad.cpu.kernels.simd import load, store, stream


@plain
def triad(tag, arguments, task, streaming):
    """result = a + b for one block of float32, whole vectors only."""
    t = read(Triad, arguments)
    for j in range(task * TRIAD_BLOCK, min(t.elements, (task + 1) * TRIAD_BLOCK), LANES):
        total = load(tag, t.a, j) + load(tag, t.b, j)
        if streaming is None:
            store(tag, t.result, j, total)
        else:
            stream(tag, t.result, j, total)


def _streamed(tag, acc):
    @plain
    def triad_streamed(arguments, task, thread):
        triad(tag, arguments, task, 1)

    return triad_streamed


def _stored(tag, acc):
    @plain
    def triad_stored(arguments, task, thread):
        triad(tag, arguments, task, None)

    return triad_stored


TRIADS = {"triad_streamed": _streamed, "triad_stored": _stored}
