"""Small arrays converted between the dtype of x and the accumulator's, so that a short call needs no one else for it."""

from lngrad.kernels.numba_cpu.pool import words
from lngrad.kernels.numba_cpu.simd import LANES, load, load_scalar, store, store_scalar
from lngrad.kernels.numba_cpu.sweeps import plain


@plain
def convert(source_tag, target_tag, arguments, task, thread):
    """One task: the task-th of the arguments' arrays, each told by the address of its source, of its target, and elements."""
    source, target, n = words(arguments + 24 * task, 3)
    for j in range(0, n - n % LANES, LANES):
        store(target_tag, target, j, load(source_tag, source, j))
    for j in range(n - n % LANES, n):
        store_scalar(target_tag, target, j, load_scalar(source_tag, source, j))
