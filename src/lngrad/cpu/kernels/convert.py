"""Statistics and parameters converted between the dtype of x and the accumulator's."""

from lngrad.cpu.jobs import LANES, Convert
from lngrad.cpu.kernels.functions import plain
from lngrad.cpu.kernels.pool import read
from lngrad.cpu.kernels.simd import load, load_scalar, store, store_scalar

RECORD_BYTES = 8 * len(Convert._fields)


@plain
def convert(source_tag, target_tag, arguments, task, thread):
    """One task: one array, described by the task-th record."""
    c = read(Convert, arguments + RECORD_BYTES * task)
    whole = c.elements - c.elements % LANES
    for j in range(0, whole, LANES):
        store(target_tag, c.target, j, load(source_tag, c.source, j))
    for j in range(whole, c.elements):
        store_scalar(target_tag, c.target, j, load_scalar(source_tag, c.source, j))
