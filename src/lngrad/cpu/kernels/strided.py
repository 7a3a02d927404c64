"""Rows that can't be computed where they lie, copied to and from contiguous memory, a few rows at a time.

Such rows have no plain stride, or another dtype than the kernel's, into which they are converted on the way. How they lie is
told by a table of int64: the number of leading dimensions, their sizes and steps in bytes, innermost first, and the offset in
bytes of every column. Eight by eight elements are copied as vectors where the columns follow each other, or where the rows do,
as in images with channels first.
"""

from lngrad.cpu.jobs import LANES
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.pool import word
from lngrad.cpu.kernels.simd import size_of
from lngrad.cpu.kernels.tiles import copy_element, copy_lanes, gather_tile, scatter_tile


@inlined
def columns_of(table):
    """Where the columns' offsets begin."""
    return table + 8 * (1 + 2 * word(table, 0))


@plain
def row_offset(table, i):
    """Of row i, in bytes."""
    offset = 0
    for dim in range(word(table, 0)):
        size = word(table, 1 + 2 * dim)
        offset += i % size * word(table, 2 + 2 * dim)
        i //= size
    return offset


@plain
def rows_beside(table, i, most):
    """How many rows, `most` at most, are one innermost step apart from row i on."""
    return min(most, word(table, 1) - i % word(table, 1)) if word(table, 0) > 0 else 1


@plain
def rows_are_closer(table, N):
    """Whether rows have a smaller step than columns."""
    columns = columns_of(table)
    return word(table, 0) > 0 and N > 1 and abs(word(table, 2)) < abs(word(columns, 1) - word(columns, 0))


@inlined
def follow_each_other(columns, j, N, size):
    """Whether columns j … j+7 are there, without gaps."""
    run = 1
    while run < LANES and j + run < N and word(columns, j + run) == word(columns, j) + run * size:
        run += 1
    return run == LANES


@plain
def copy_tiles(outer, inner, back, row, columns, N, run, packed):
    """`run` >= 8 rows beside each other, of N >= 8 columns: the last tile of either direction overlaps the one before."""
    row_bytes = N * size_of(inner)
    for column in range(0, N, LANES):
        j = min(column, N - LANES)
        for beside in range(0, run, LANES):
            k = min(beside, run - LANES)
            place, at = row + k * size_of(outer), packed + k * row_bytes + j * size_of(inner)
            if back is None:
                gather_tile(outer, inner, place, columns + 8 * j, at, row_bytes)
            else:
                scatter_tile(outer, inner, place, columns + 8 * j, at, row_bytes)


@plain
def copy_beside(outer, inner, back, row, step, columns, N, run, packed):
    """`run` rows that lie `step` bytes apart, element by element, along the rows."""
    for j in range(N):
        for k in range(run):
            place, at = row + k * step + word(columns, j), packed + (k * N + j) * size_of(inner)
            if back is None:
                copy_element(outer, inner, place, at)
            else:
                copy_element(inner, outer, at, place)


@plain
def copy_row(outer, inner, back, row, columns, N, packed):
    """One row, eight columns at once where they follow each other."""
    j = 0
    while j < N:
        place, at, together = row + word(columns, j), packed + j * size_of(inner), 1
        if follow_each_other(columns, j, N, size_of(outer)):
            together = LANES
            if back is None:
                copy_lanes(outer, inner, place, at)
            else:
                copy_lanes(inner, outer, at, place)
        elif back is None:
            copy_element(outer, inner, place, at)
        else:
            copy_element(inner, outer, at, place)
        j += together


@plain
def move_rows(outer, inner, back, base, table, first, rows, N, packed):
    """Copy rows first … first+rows-1 of N columns, stored as `outer` says, to packed, row-major, as `inner` says.

    back: None, or 1 for the reverse.
    """
    columns, closer = columns_of(table), rows_are_closer(table, N)
    i = 0
    while i < rows:
        row, at, run = base + row_offset(table, first + i), packed + i * N * size_of(inner), 1
        if closer:
            run = rows_beside(table, first + i, rows - i)
            if run >= LANES and N >= LANES and word(table, 2) == size_of(outer):
                copy_tiles(outer, inner, back, row, columns, N, run, at)
            else:
                copy_beside(outer, inner, back, row, word(table, 2), columns, N, run, at)
        else:
            copy_row(outer, inner, back, row, columns, N, at)
        i += run
