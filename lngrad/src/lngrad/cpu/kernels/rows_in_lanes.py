"""The forward of rows that lie beside each other, as in images with channels first: lane r of a vector is row r.

So a column of several rows is one load, and nothing is turned but the result. Each lane adds its row's columns in the order of
`row_sums`: 32 partial sums, one for each column of a group, which are added four by four and then by halves. Rows have one
segment and at least GROUP columns, images at least as many rows as a vector.
"""

from lngrad.cpu.jobs import GROUP, LANES, Forward
from lngrad.cpu.kernels.arithmetic import scalar, splat, splat_at, subtract_mean, xhat_of, zeros_columns
from lngrad.cpu.kernels.forward import close_rows, or_zeros
from lngrad.cpu.kernels.forward_rows import scaled
from lngrad.cpu.kernels.functions import NO, YES, inlined, plain
from lngrad.cpu.kernels.pool import read, word
from lngrad.cpu.kernels.row_sums import add_both
from lngrad.cpu.kernels.simd import (
    LINE_BYTES,
    LONG,
    fetch_line,
    load,
    load_columns,
    offset,
    or_none,
    rows_of_line,
    size_of,
    step_of,
    store,
    store_word,
)
from lngrad.cpu.kernels.strided import (
    columns_of,
    copy_element,
    gather_tile,
    row_offset,
    rows_beside,
    tile_columns,
    tile_rows,
)

# Numbers of the rows, each a vector of as many lanes as there are rows: the sums of eight columns and of their squares, and
# what follows from them.
SUMS, SQUARES, CENTRES, DEVIATIONS, VARIANCES, MEANS, RSTDS, LOSTS = 0, 8, 16, 17, 18, 19, 20, 21
NUMBERS = 22


@inlined
def vector_of_rows(acc, kind, memory, number):
    """The address of a vector of all rows."""
    return memory + number * step_of(acc, kind) * size_of(acc)


@plain
def pack_rows(storage, acc, kind, f, start, packed, spare):
    """Columns of rows from `start` on, as many as a vector has, one after the other in the accumulator's dtype.

    Where the rows of an image end before, the last vector of its rows and the first of the next image's stand beside each other
    in `spare`, and the rows are read from the middle. What follows the last row of all is anything.
    """
    columns, width = columns_of(f.x_table), step_of(acc, kind)
    row, run = f.x + row_offset(f.x_table, start), rows_beside(f.x_table, start, width)
    if run == width:
        for j in range(f.N):
            store(acc, packed, j * width, load_columns(storage, kind, row + word(columns, j), 0))
        return
    row -= (width - run) * size_of(storage)
    following = row if start + run >= f.M else f.x + row_offset(f.x_table, start + run)
    for j in range(f.N):
        at = word(columns, j)
        store(acc, spare, 2 * j * width, load_columns(storage, kind, row + at, 0))
        store(acc, spare, (2 * j + 1) * width, load_columns(storage, kind, following + at, 0))
    for j in range(f.N):
        store(acc, packed, j * width, load_columns(acc, kind, spare, (2 * j + 1) * width - run))


@inlined
def add_column(acc, kind, packed, j, centre, sums):
    """Sums and squares with column j minus the centre added."""
    return add_both(sums, subtract_mean(load_columns(acc, kind, packed, j * step_of(acc, kind)), centre))


@inlined
def add_columns(acc, kind, packed, memory, centre, squares, N):
    """Write the sums of columns l, l + 8, … minus the centre to SUMS + l, and of their squares to SQUARES + l."""
    whole = N - N % GROUP
    for lane in range(LANES):
        s0 = s1 = s2 = s3 = zeros_columns(acc, kind), zeros_columns(acc, kind)
        for j in range(lane, whole, GROUP):
            s0 = add_column(acc, kind, packed, j, centre, s0)
            s1 = add_column(acc, kind, packed, j + LANES, centre, s1)
            s2 = add_column(acc, kind, packed, j + 2 * LANES, centre, s2)
            s3 = add_column(acc, kind, packed, j + 3 * LANES, centre, s3)
        for j in range(whole + lane, N - N % LANES, LANES):
            s0 = add_column(acc, kind, packed, j, centre, s0)
        if lane >= LANES - N % LANES:
            s3 = add_column(acc, kind, packed, N - LANES + lane, centre, s3)
        store(acc, vector_of_rows(acc, kind, memory, SUMS + lane), 0, (s0[0] + s1[0]) + (s2[0] + s3[0]))
        store(
            acc,
            vector_of_rows(acc, kind, memory, SQUARES + lane),
            0,
            or_none(squares, (s0[1] + s1[1]) + (s2[1] + s3[1])),
        )


@inlined
def sum_of_lanes(acc, kind, memory, number, to):
    """Add up eight vectors from `number` on by halves, quarters and neighbours."""
    step = step_of(acc, kind)
    at = vector_of_rows(acc, kind, memory, number)
    v0 = load_columns(acc, kind, at, 0) + load_columns(acc, kind, at, 4 * step)
    v1 = load_columns(acc, kind, at, step) + load_columns(acc, kind, at, 5 * step)
    v2 = load_columns(acc, kind, at, 2 * step) + load_columns(acc, kind, at, 6 * step)
    v3 = load_columns(acc, kind, at, 3 * step) + load_columns(acc, kind, at, 7 * step)
    store(acc, vector_of_rows(acc, kind, memory, to), 0, (v0 + v2) + (v1 + v3))


@plain
def measure_in_lanes(acc, kind, f, memory, packed, mean, rstd, rows):
    """mean and rstd of packed rows; left in memory as well, with what xhat lost."""
    centres, deviations = vector_of_rows(acc, kind, memory, CENTRES), vector_of_rows(acc, kind, memory, DEVIATIONS)
    variances = vector_of_rows(acc, kind, memory, VARIANCES)
    if mean is not None:
        add_columns(acc, kind, packed, memory, None, None, f.N)
        sum_of_lanes(acc, kind, memory, SUMS, CENTRES)
        for r in range(0, step_of(acc, kind), LANES):
            store(acc, centres, r, load(acc, centres, r) / splat(scalar(acc, f.N)))
    add_columns(acc, kind, packed, memory, load_columns(acc, kind, or_none(mean, centres), 0), 1, f.N)
    sum_of_lanes(acc, kind, memory, SUMS, DEVIATIONS)
    sum_of_lanes(acc, kind, memory, SQUARES, VARIANCES)
    for r in range(0, rows, LANES):
        centre = or_zeros(acc, load(acc, or_none(mean, centres), r))
        deviation = or_zeros(acc, load(acc, or_none(mean, deviations), r))
        sums = centre, deviation, load(acc, variances, r)
        at = r * size_of(acc)
        m, s, lost = close_rows(acc, f.N, f.eps, *sums, offset(mean, at), rstd + at, rows - r)
        store(acc, vector_of_rows(acc, kind, memory, MEANS), r, m)
        store(acc, vector_of_rows(acc, kind, memory, RSTDS), r, s)
        store(acc, vector_of_rows(acc, kind, memory, LOSTS), r, lost)


@inlined
def turn_rows(storage, tile, width, places, y, y_stride, rows, streaming):
    """Write a tile's rows, of which lane r of its columns has row r."""
    step, size = tile_rows(storage, storage, LONG), size_of(storage)
    if rows < step:
        for r in range(rows):
            for k in range(tile_columns(storage, storage, LONG)):
                copy_element(storage, storage, tile + (k * width + r) * size, y + r * y_stride + k * size)
        return
    for row in range(0, rows, step):
        r = min(row, rows - step)
        gather_tile(storage, storage, LONG, streaming, tile + r * size, places, y + r * y_stride, y_stride)


@plain
def write_in_lanes(storage, acc, kind, f, memory, packed, tile, places, mean, beta, y, rows, following, streaming):
    """y of packed rows whose statistics are in memory, a tile of columns at a time.

    Meanwhile later rows are fetched, whose first column has its last bytes at `following`: the processor by itself does not
    foresee so many short runs.
    """
    width, N, wide, columns = step_of(acc, kind), f.N, tile_columns(storage, storage, LONG), columns_of(f.x_table)
    m = load_columns(acc, kind, or_none(mean, vector_of_rows(acc, kind, memory, MEANS)), 0)
    s = load_columns(acc, kind, vector_of_rows(acc, kind, memory, RSTDS), 0)
    lost = load_columns(acc, kind, or_none(mean, vector_of_rows(acc, kind, memory, LOSTS)), 0)
    for column in range(0, N, wide):
        first = min(column, N - wide)
        for j in range(first, first + wide):
            xhat = xhat_of(subtract_mean(load_columns(acc, kind, packed, j * width), m), s, lost)
            g, b = splat_at(acc, kind, f.gamma, j), splat_at(acc, kind, beta, j)
            store(storage, tile, (j - first) * width, scaled(xhat, g, b))
            for back in range(0, width * size_of(storage), LINE_BYTES):
                fetch_line(following + word(columns, j) - back)
        turn_rows(storage, tile, width, places, y + first * size_of(storage), f.y_stride, rows, streaming)


@plain
def forward_in_lanes(storage, acc, has_mean, has_beta, arguments, task, thread):
    """One task: rows_per_task rows, a vector of them at a time. y has one row after the other."""
    f, kind = read(Forward, arguments), rows_of_line(storage)
    width, wide = step_of(acc, kind), tile_columns(storage, storage, LONG)
    memory = f.scratch + thread * f.thread_bytes
    tile = vector_of_rows(acc, kind, memory, NUMBERS)
    places = tile + wide * width * size_of(storage)
    packed = places + 8 * wide
    spare = vector_of_rows(acc, kind, packed, f.N)
    for k in range(wide):
        store_word(places, k, k * width * size_of(storage))
    stop = min(f.M, (task + 1) * f.rows_per_task)
    for start in range(task * f.rows_per_task, stop, width):
        rows, at = min(width, stop - start), start * size_of(acc)
        mean, beta, y = or_none(has_mean, f.mean + at), or_none(has_beta, f.beta), f.y + start * f.y_stride
        following = f.x + row_offset(f.x_table, min(start + 2 * width, f.M - 1)) + width * size_of(storage) - 1
        pack_rows(storage, acc, kind, f, start, packed, spare)
        measure_in_lanes(acc, kind, f, memory, packed, mean, f.rstd + at, rows)
        if f.streaming and wide * size_of(storage) >= LINE_BYTES and f.N % wide == 0:
            write_in_lanes(storage, acc, kind, f, memory, packed, tile, places, mean, beta, y, rows, following, YES)
        else:
            write_in_lanes(storage, acc, kind, f, memory, packed, tile, places, mean, beta, y, rows, following, NO)
