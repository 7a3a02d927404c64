"""Rows that can't be computed where they lie, copied to and from contiguous memory, a few rows at a time.

Such rows have no plain stride, or another dtype than the kernel's, into which they are converted on the way. A table of int64
says how they lie: the number of leading dimensions, their sizes and steps in bytes, innermost first, and the offset in bytes
of every column. Eight by eight elements are copied as a tile where the columns follow each other, or where the rows do, as in
images with channels first: eight vectors along the rows become eight vectors along the columns in registers, or back.
"""

from llvmlite import ir
from numba.core import types

from lngrad.cpu.jobs import LANES
from lngrad.cpu.kernels.functions import inlined, lowered, plain
from lngrad.cpu.kernels.pool import word
from lngrad.cpu.kernels.simd import size_of, stored_as

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Each step shuffles pairs of vectors (how far apart, the two masks); after three the tile is turned. The masks are such that
# the processor has one instruction for each: 32-bit vectors fill a register of two halves, 16-bit ones half a register.
_ZIP = (4, (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15))
_STEPS = {
    16: (_ZIP, _ZIP, _ZIP),
    32: (
        (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
        (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
        (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
    ),
}


def _turned(builder, vectors, bits):
    """Vectors whose lane l of vector k was lane k of vector l."""
    for apart, low, high in _STEPS[16 if bits == 16 else 32]:
        masks = [ir.Constant(ir.VectorType(_I32, LANES), mask) for mask in (low, high)]
        firsts = [k for k in range(LANES) if not k & apart]
        results = [[builder.shuffle_vector(vectors[k], vectors[k + apart], mask) for mask in masks] for k in firsts]
        if bits == 16:
            vectors = [vector for pair in results for vector in pair]
        else:
            vectors = [None] * LANES
            for k, (one, other) in zip(firsts, results, strict=True):
                vectors[k], vectors[k + apart] = one, other
    return vectors if bits == 16 else [vectors[k] for k in (0, 2, 1, 3, 4, 6, 5, 7)]


def _at(builder, address, element, width=0):
    kind = ir.VectorType(element, width) if width else element
    return builder.inttoptr(address, kind.as_pointer())


def _raw(kind):
    return ir.IntType(kind.bitwidth)


def _copy(builder, source, target, source_address, target_address, width):
    value = builder.load(_at(builder, source_address, _raw(source), width), align=1)
    value = stored_as(builder, value, source, target)
    builder.store(value, _at(builder, target_address, _raw(target), width), align=1)


@lowered(types.void)
def copy_element(builder, source, target, source_address, target_address):
    """One element from one address to another, from the storage `source` to `target`."""
    _copy(builder, source, target, source_address, target_address, 0)


@lowered(types.void)
def copy_lanes(builder, source, target, source_address, target_address):
    """Eight elements that follow each other."""
    _copy(builder, source, target, source_address, target_address, LANES)


def _columns(builder, base, offsets):
    """The addresses of a tile's columns."""
    words = builder.inttoptr(offsets, _I64.as_pointer())
    return [builder.add(base, builder.load(builder.gep(words, [ir.Constant(_I64, k)]))) for k in range(LANES)]


def _rows(builder, packed, row_bytes):
    """The addresses of a tile's packed rows."""
    return [builder.add(packed, builder.mul(row_bytes, ir.Constant(_I64, k))) for k in range(LANES)]


def _load_all(builder, addresses, kind):
    return [builder.load(_at(builder, address, _raw(kind), LANES), align=1) for address in addresses]


def _store_all(builder, vectors, addresses, kind):
    for vector, address in zip(vectors, addresses, strict=True):
        builder.store(vector, _at(builder, address, _raw(kind), LANES), align=1)


@lowered(types.void)
def gather_tile(builder, outer, inner, base, offsets, packed, row_bytes):
    """Eight rows that follow each other, of eight columns anywhere (`offsets` is where theirs lie), to eight packed rows."""
    columns = _load_all(builder, _columns(builder, base, offsets), outer)
    rows = [stored_as(builder, row, outer, inner) for row in _turned(builder, columns, outer.bitwidth)]
    _store_all(builder, rows, _rows(builder, packed, row_bytes), inner)


@lowered(types.void)
def scatter_tile(builder, outer, inner, base, offsets, packed, row_bytes):
    """The reverse of gather_tile."""
    rows = _load_all(builder, _rows(builder, packed, row_bytes), inner)
    columns = _turned(builder, [stored_as(builder, row, inner, outer) for row in rows], outer.bitwidth)
    _store_all(builder, columns, _columns(builder, base, offsets), outer)


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
