"""Rows that can't be computed where they lie, copied to and from contiguous memory, a few rows at a time.

Such rows have no plain stride, or another dtype than the kernel's, into which they are converted on the way. A table of int64
says how they lie: the number of leading dimensions, their sizes and steps in bytes, innermost first, and the offset in bytes
of every column; behind these it has the functions that copy them. Where the columns follow each other eight elements are
copied at once, and where the rows do, as in images with channels first, a tile: vectors along the rows become vectors along the
columns in registers, or back.
"""

from llvmlite import ir
from numba.core import types

from lngrad.cpu.jobs import GROUP, LANES
from lngrad.cpu.kernels.functions import inlined, lowered, plain
from lngrad.cpu.kernels.pool import copies_of, word
from lngrad.cpu.kernels.simd import (
    LONG,
    WIDE,
    fetch_group,
    fetch_group_to_write,
    is_none,
    shuffle,
    size_of,
    stored_as,
)

_I32, _I64 = ir.IntType(32), ir.IntType(64)
REGISTER_WORDS = 16 if WIDE else LANES

# A tile is a square of words: as many as a register holds, eight at least. Each step shuffles pairs of vectors (how far apart,
# the two masks) in a way that the processor has one instruction for: words and pairs of words trade places inside the quarters
# or halves of a register, then these do. After the last the tile is turned, but for an order of rows.
# 16 by 16 float32 take 37 cycles from the first-level cache; 64 shuffles, of which two start a cycle.
_STEPS = {
    8: (
        (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
        (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
        (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
    ),
    16: tuple(
        (apart, tuple(low), tuple(k + shift for k in low))
        for apart, low, shift in (
            (1, [4 * q + k for q in range(4) for k in (0, 16, 1, 17)], 2),
            (2, [4 * q + k for q in range(4) for k in (0, 1, 16, 17)], 2),
            (4, [8 * q + k for q in range(4) for k in range(4)], 4),
            (8, [8 * q + k for q in range(4) for k in range(4)], 4),
        )
    ),
}

_ZIP = (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)  # what half a register of 16-bit elements has instead


def _turned(builder, vectors):
    """Vectors whose lane l of vector k was lane k of vector l."""
    if vectors[0].type.element.width == 16:
        for _ in range(3):
            vectors = [shuffle(builder, vectors[k], vectors[k + 4], mask) for k in range(4) for mask in _ZIP]
        return vectors
    for apart, low, high in _STEPS[len(vectors)]:
        turned = [None] * len(vectors)
        for k in range(len(vectors)):
            if not k & apart:
                turned[k] = shuffle(builder, vectors[k], vectors[k + apart], low)
                turned[k + apart] = shuffle(builder, vectors[k], vectors[k + apart], high)
        vectors = turned
    return [vectors[k & ~3 | (k & 1) << 1 | (k & 2) >> 1] for k in range(len(vectors))]


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
def copy_lanes(builder, source, target, kind, source_address, target_address):
    """Eight elements that follow each other, or GROUP unless `kind` is None's."""
    _copy(builder, source, target, source_address, target_address, LANES if kind == types.none else GROUP)


def tile_shape(outer, inner, kind):
    """Rows and columns of a tile: a square of words, in which two columns of 16 bits are one. Small where `kind` is None's."""
    words = outer.bitwidth == inner.bitwidth <= 32
    rows = REGISTER_WORDS if words and kind != types.none else LANES
    return rows, 2 * rows if words and outer.bitwidth == 16 and kind != types.none else rows


@lowered(types.int64)
def tile_rows(builder, outer, inner, kind):
    return ir.Constant(_I64, tile_shape(outer, inner, kind)[0])


@lowered(types.int64)
def tile_columns(builder, outer, inner, kind):
    return ir.Constant(_I64, tile_shape(outer, inner, kind)[1])


def _columns(builder, base, offsets, count):
    """The addresses of a tile's columns."""
    words = builder.inttoptr(offsets, _I64.as_pointer())
    return [builder.add(base, builder.load(builder.gep(words, [ir.Constant(_I64, k)]))) for k in range(count)]


def _rows(builder, packed, row_bytes, count):
    """The addresses of a tile's packed rows."""
    return [builder.add(packed, builder.mul(row_bytes, ir.Constant(_I64, k))) for k in range(count)]


def _load_all(builder, addresses, kind, width):
    return [builder.load(_at(builder, address, _raw(kind), width), align=1) for address in addresses]


def _store_all(builder, vectors, addresses, kind, width, streaming=False):
    for vector, address in zip(vectors, addresses, strict=True):
        align = width * kind.bitwidth // 8 if streaming else 1
        instruction = builder.store(vector, _at(builder, address, _raw(kind), width), align=align)
        if streaming:
            instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _to_words(builder, columns):
    """Pairs of columns of 16 bits as words."""
    words = ir.VectorType(_I32, columns[0].type.count)
    order = [k + o for k in range(words.count) for o in (0, words.count)]
    return [
        builder.bitcast(shuffle(builder, *pair, order), words) for pair in zip(columns[::2], columns[1::2], strict=True)
    ]


def _from_words(builder, words):
    """The reverse of _to_words."""
    rows = words[0].type.count
    halves = [builder.bitcast(word, ir.VectorType(ir.IntType(16), 2 * rows)) for word in words]
    return [shuffle(builder, half, half, list(range(o, 2 * rows, 2))) for half in halves for o in (0, 1)]


@lowered(types.void)
def gather_tile(builder, outer, inner, kind, streaming, base, offsets, packed, row_bytes):
    """A tile of rows that follow each other, of columns anywhere (`offsets` is where theirs lie), to packed rows; past the
    caches where `streaming` is not None, whole lines of them."""
    rows, columns = tile_shape(outer, inner, kind)
    vectors = _load_all(builder, _columns(builder, base, offsets, columns), outer, rows)
    if columns > rows:
        vectors = [
            builder.bitcast(row, ir.VectorType(_raw(inner), columns))
            for row in _turned(builder, _to_words(builder, vectors))
        ]
    else:
        vectors = [stored_as(builder, row, outer, inner) for row in _turned(builder, vectors)]
    past = not is_none(streaming)
    _store_all(builder, vectors, _rows(builder, packed, row_bytes, rows), inner, columns, past)


@lowered(types.void)
def scatter_tile(builder, outer, inner, kind, base, offsets, packed, row_bytes):
    """The reverse of gather_tile."""
    rows, columns = tile_shape(outer, inner, kind)
    vectors = _load_all(builder, _rows(builder, packed, row_bytes, rows), inner, columns)
    if columns > rows:
        vectors = [builder.bitcast(row, ir.VectorType(_I32, rows)) for row in vectors]
        vectors = _from_words(builder, _turned(builder, vectors))
    else:
        vectors = _turned(builder, [stored_as(builder, row, inner, outer) for row in vectors])
    _store_all(builder, vectors, _columns(builder, base, offsets, columns), outer, rows)


@inlined
def columns_of(table):
    """The address of the columns' offsets."""
    return table + 8 * (1 + 2 * word(table, 0))


@plain
def row_offset(table, i):
    """The offset of row i, in bytes."""
    offset = 0
    for dim in range(word(table, 0)):
        size = word(table, 1 + 2 * dim)
        offset += i % size * word(table, 2 + 2 * dim)
        i //= size
    return offset


@plain
def rows_beside(table, i, most):
    """The number of rows, `most` at most, that are one innermost step apart from row i on."""
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


@inlined
def copy_tiles(outer, inner, kind, back, row, columns, N, run, packed):
    """`run` rows beside each other, at least a tile's, and as many columns: the last tile of either direction overlaps the one
    before."""
    row_bytes, tile = N * size_of(inner), tile_rows(outer, inner, kind)
    wide = tile_columns(outer, inner, kind)
    for column in range(0, N, wide):
        j = min(column, N - wide)
        for beside in range(0, run, tile):
            k = min(beside, run - tile)
            place, at = row + k * size_of(outer), packed + k * row_bytes + j * size_of(inner)
            if back is None:
                gather_tile(outer, inner, kind, None, place, columns + 8 * j, at, row_bytes)
            else:
                scatter_tile(outer, inner, kind, place, columns + 8 * j, at, row_bytes)


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
                copy_lanes(outer, inner, None, place, at)
            else:
                copy_lanes(inner, outer, None, at, place)
        elif back is None:
            copy_element(outer, inner, place, at)
        else:
            copy_element(inner, outer, at, place)
        j += together


@inlined
def copy_columns(outer, inner, kind, back, row, j, packed):
    """Copy as many columns as copy_lanes does, which follow each other."""
    place, at = row + j * size_of(outer), packed + j * size_of(inner)
    if back is None:
        copy_lanes(outer, inner, kind, place, at)
    else:
        copy_lanes(inner, outer, kind, at, place)


@plain
def copy_plain_row(outer, inner, back, row, later, N, packed):
    """One row of N >= 8 columns that follow each other; the last eight overlap those before. A later row is fetched meanwhile:
    a copy waits for nothing else, and took twice as long where its rows came from memory."""
    for j in range(0, N - N % GROUP, GROUP):
        if back is None:
            fetch_group(outer, later, j)
        else:
            fetch_group_to_write(outer, later, j)
        copy_columns(outer, inner, LONG, back, row, j, packed)
    for j in range(N - N % GROUP, N, LANES):
        copy_columns(outer, inner, None, back, row, min(j, N - LANES), packed)


@plain
def move_rows(outer, inner, back, base, table, first, rows, N, packed):
    """Copy rows first … first+rows-1 of N columns, stored as `outer` says, to packed, row-major, as `inner` says.

    back: None, or 1 for the reverse.
    """
    columns, closer = columns_of(table), rows_are_closer(table, N)
    is_plain = N >= LANES and word(copies_of(table, N), 2) != 0
    i = 0
    while i < rows:
        row, at, run = base + row_offset(table, first + i), packed + i * N * size_of(inner), 1
        if closer:
            run = rows_beside(table, first + i, rows - i)
            beside = word(table, 2) == size_of(outer)
            if beside and run >= tile_rows(outer, inner, LONG) and tile_columns(outer, inner, LONG) <= N:
                copy_tiles(outer, inner, LONG, back, row, columns, N, run, at)
            elif beside and run >= LANES and N >= LANES:
                copy_tiles(outer, inner, None, back, row, columns, N, run, at)
            else:
                copy_beside(outer, inner, back, row, word(table, 2), columns, N, run, at)
        elif is_plain:
            copy_plain_row(outer, inner, back, row, base + row_offset(table, first + i + rows), N, at)
        else:
            copy_row(outer, inner, back, row, columns, N, at)
        i += run
