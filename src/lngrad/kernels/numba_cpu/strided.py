"""Rows of tensors without a plain row stride, copied to and from contiguous memory, a few rows at a time.

A table holds the offset in bytes of every row and then of every column, so any layout of any number of dimensions is
`base + table[row] + table[M + column]`. The inner loop runs along whichever of the two has the smaller step.
"""

from lngrad.kernels.numba_cpu.functions import plain
from lngrad.kernels.numba_cpu.pool import word
from lngrad.kernels.numba_cpu.simd import load_raw, store_raw


@plain
def pack(tag, base, table, M, first, rows, N, packed):
    """Copy rows first … first+rows-1 of N columns to packed, row-major."""
    if rows_are_closer(table, M, first, rows, N):
        for j in range(N):
            column = base + word(table, M + j)
            for i in range(rows):
                store_raw(tag, packed, i * N + j, load_raw(tag, column + word(table, first + i), 0))
    else:
        for i in range(rows):
            row = base + word(table, first + i)
            for j in range(N):
                store_raw(tag, packed, i * N + j, load_raw(tag, row + word(table, M + j), 0))


@plain
def unpack(tag, packed, base, table, M, first, rows, N):
    """The reverse of pack."""
    if rows_are_closer(table, M, first, rows, N):
        for j in range(N):
            column = base + word(table, M + j)
            for i in range(rows):
                store_raw(tag, column + word(table, first + i), 0, load_raw(tag, packed, i * N + j))
    else:
        for i in range(rows):
            row = base + word(table, first + i)
            for j in range(N):
                store_raw(tag, row + word(table, M + j), 0, load_raw(tag, packed, i * N + j))


@plain
def rows_are_closer(table, M, first, rows, N):
    if rows < 2 or N < 2:
        return False
    return abs(word(table, first + 1) - word(table, first)) < abs(word(table, M + 1) - word(table, M))
