"""Forward tasks: mean, rstd and y of whole rows.

The mean is taken twice: the first one centres the row, and the mean of what is left corrects it. So a large offset costs
no accuracy, and the variance is never a difference of two large numbers. Source: docs/math.md, equations 1 to 4.
"""

from lngrad.cpu.jobs import GROUP, LANES, Forward
from lngrad.cpu.kernels.arithmetic import (
    fma,
    from_bits,
    mask_below,
    scalar,
    splat,
    splat_group,
    totals,
    vector_of,
    zeros,
)
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.pool import copy_rows, read
from lngrad.cpu.kernels.row_passes import (
    CENTRES,
    MEANS,
    RSTDS,
    SCRATCH_VECTORS,
    SQUARES,
    SUMS,
    centre_rows,
    centred_sums,
    clear_absent,
    fetch_row,
    statistics,
    vector_at,
)
from lngrad.cpu.kernels.simd import (
    LINE_BYTES,
    gather,
    load,
    load_group,
    load_scalar,
    scatter_rows,
    size_of,
    stack_vectors,
    store,
    stream,
)

ALIGNED = 4 * GROUP  # columns from which on a row's stores begin on cache lines


@inlined
def row_of(acc, memory, x, y, r):
    """Row r as write_rows takes it, whose mean and rstd lie in memory."""
    m, s = load_scalar(acc, vector_at(acc, memory, MEANS), r), load_scalar(acc, vector_at(acc, memory, RSTDS), r)
    return x, y, splat_group(m), splat_group(s)


@inlined
def peek(storage, acc, row, gamma, beta, j):
    """y of eight columns."""
    if row is None:
        return zeros(acc)
    x, y, m, s = row
    return fma((load(storage, x, j) - vector_of(m, 0)) * vector_of(s, 0), load(acc, gamma, j), load(acc, beta, j))


@inlined
def put(storage, row, j, lanes):
    if row is None:
        return
    x, y, m, s = row
    store(storage, y, j, lanes)


@inlined
def write_group(storage, row, j, g, b, streaming):
    """y of GROUP columns of one row."""
    if row is None:
        return
    x, y, m, s = row
    result = fma((load_group(storage, x, j) - m) * s, g, b)
    if streaming is None:
        store(storage, y, j, result)
    else:
        stream(storage, y, j, result)


@plain
def write_rows(storage, acc, row0, row1, row2, row3, ahead, gamma, beta, N, skipped, streaming):
    """y of one to four rows (None: absent) of N >= 8 columns, reading gamma and beta once for all.

    ahead: how many bytes on the rows lie that are fetched meanwhile; 0: these themselves. skipped: so many columns a first
    group is written that the second one overlaps, so that it and all others begin on cache lines of y. streaming: None, or 1 if
    y goes past the caches.
    """
    tail, last = (N - skipped) % LANES, N - LANES
    peeked0 = peeked1 = peeked2 = peeked3 = zeros(acc)
    # Read before y is written: where y takes x's own memory, the last full vector overwrites some of these.
    if tail > 0:
        peeked0, peeked1 = peek(storage, acc, row0, gamma, beta, last), peek(storage, acc, row1, gamma, beta, last)
        peeked2, peeked3 = peek(storage, acc, row2, gamma, beta, last), peek(storage, acc, row3, gamma, beta, last)
    j = skipped - GROUP if skipped > 0 else 0
    while j + GROUP <= N:
        at = max(j, 0)
        if at & GROUP != 0:  # the other groups have been fetched by lanes_of
            fetch_row(storage, row0, at, ahead, None)
            fetch_row(storage, row1, at, ahead, None)
            fetch_row(storage, row2, at, ahead, None)
            fetch_row(storage, row3, at, ahead, None)
        g, b = load_group(acc, gamma, at), load_group(acc, beta, at)
        write_group(storage, row0, at, g, b, streaming)
        write_group(storage, row1, at, g, b, streaming)
        write_group(storage, row2, at, g, b, streaming)
        write_group(storage, row3, at, g, b, streaming)
        j += GROUP
    while j + LANES <= N:
        put(storage, row0, j, peek(storage, acc, row0, gamma, beta, j))
        put(storage, row1, j, peek(storage, acc, row1, gamma, beta, j))
        put(storage, row2, j, peek(storage, acc, row2, gamma, beta, j))
        put(storage, row3, j, peek(storage, acc, row3, gamma, beta, j))
        j += LANES
    if tail > 0:
        put(storage, row0, last, peeked0)
        put(storage, row1, last, peeked1)
        put(storage, row2, last, peeked2)
        put(storage, row3, last, peeked3)


@inlined
def columns_to_line(storage, x, y, N, streaming):
    """How many columns of a row's y lie before its first cache line; 0 if they need not be treated apart.

    A store across two lines costs as much as two. Not in place, where the overlap would be read after it was written.
    """
    if streaming is not None or N < ALIGNED or x == y:
        return 0
    return (-y & (LINE_BYTES - 1)) // size_of(storage)


@inlined
def write_row(storage, acc, row, ahead, gamma, beta, N, streaming):
    """write_rows of one row."""
    skipped = columns_to_line(storage, row[0], row[1], N, streaming)
    write_rows(storage, acc, row, None, None, None, ahead, gamma, beta, N, skipped, streaming)


@inlined
def close_rows(acc, N, eps, centres, deviations, squares, mean, rstd, rows):
    """statistics of up to eight rows, written to the addresses mean and rstd."""
    means, rstds = statistics(acc, N, centres, deviations, squares, from_bits(eps))
    scatter_rows(acc, mean, 0, 1, rows, means)
    scatter_rows(acc, rstd, 0, 1, rows, rstds)
    return means, rstds


@plain
def measure_rows(storage, acc, f, memory, x, x_stride, mean, rstd, rows):
    """mean and rstd of rows that are centred; written to memory as well."""
    centred_sums(storage, acc, memory, x, x_stride, f.ahead * x_stride, rows, f.N)
    centres = vector_at(acc, memory, CENTRES)
    means, rstds = vector_at(acc, memory, MEANS), vector_at(acc, memory, RSTDS)
    for r in range(0, rows, LANES):
        sums = load(acc, centres, r), load(acc, means, r), load(acc, rstds, r)
        at = r * size_of(acc)
        m, s = close_rows(acc, f.N, f.eps, *sums, mean + at, rstd + at, rows - r)
        store(acc, means, r, m)
        store(acc, rstds, r, s)


@plain
def write_measured_rows(storage, acc, f, memory, x, x_stride, y, y_stride, rows, streaming):
    """y of rows whose means and rstds lie in memory, four rows at a time."""
    N, ahead, r = f.N, f.ahead * x_stride, 0
    skipped = columns_to_line(storage, x, y, N, streaming)
    together = rows if skipped == 0 or y_stride % LINE_BYTES == 0 else 0
    while r + 4 <= together:
        row0 = row_of(acc, memory, x, y, r)
        row1 = row_of(acc, memory, x + x_stride, y + y_stride, r + 1)
        x, y = x + 2 * x_stride, y + 2 * y_stride
        row2 = row_of(acc, memory, x, y, r + 2)
        row3 = row_of(acc, memory, x + x_stride, y + y_stride, r + 3)
        x, y = x + 2 * x_stride, y + 2 * y_stride
        write_rows(storage, acc, row0, row1, row2, row3, ahead, f.gamma, f.beta, N, skipped, streaming)
        r += 4
    while r < rows:
        write_row(storage, acc, row_of(acc, memory, x, y, r), ahead, f.gamma, f.beta, N, streaming)
        x, y, r = x + x_stride, y + y_stride, r + 1


@plain
def some_rows(storage, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """Rows of N >= 16 columns: up to sixteen have their statistics side by side, and then their y.

    Sixteen in two vectors, so that the divisions and roots of one are under way while the other has work.
    """
    memory = stack_vectors(acc, SCRATCH_VECTORS)
    centre_rows(storage, acc, memory, x, x_stride, rows, f.N)
    measure_rows(storage, acc, f, memory, x, x_stride, mean, rstd, rows)
    if f.streaming:
        write_measured_rows(storage, acc, f, memory, x, x_stride, y, y_stride, rows, 1)
    else:
        write_measured_rows(storage, acc, f, memory, x, x_stride, y, y_stride, rows, None)


@plain
def thin_rows(storage, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """some_rows of 8 to 15 columns: the first eight and the last eight, without a loop over columns. Same sums."""
    N, memory = f.N, stack_vectors(acc, SCRATCH_VECTORS)
    last, summed = N - LANES, 2 * LANES - N
    clear_absent(acc, memory, rows)
    for r in range(rows):
        at = x + r * x_stride
        store(
            acc, vector_at(acc, memory, SUMS + r), 0, load(storage, at, 0) + mask_below(load(storage, at, last), summed)
        )
    centres = (zeros(acc) + totals(acc, vector_at(acc, memory, SUMS))) / splat(scalar(acc, N))
    store(acc, vector_at(acc, memory, CENTRES), 0, centres)
    for r in range(rows):
        at, centre = x + r * x_stride, splat(load_scalar(acc, vector_at(acc, memory, CENTRES), r))
        d0, d1 = load(storage, at, 0) - centre, mask_below(load(storage, at, last) - centre, summed)
        store(acc, vector_at(acc, memory, SUMS + r), 0, d0 + d1)
        store(acc, vector_at(acc, memory, SQUARES + r), 0, d0 * d0 + d1 * d1)
    deviations = zeros(acc) + totals(acc, vector_at(acc, memory, SUMS))
    squares = totals(acc, vector_at(acc, memory, SQUARES))
    means, rstds = close_rows(acc, N, f.eps, centres, deviations, squares, mean, rstd, rows)
    store(acc, vector_at(acc, memory, MEANS), 0, means)
    store(acc, vector_at(acc, memory, RSTDS), 0, rstds)
    g0, g1 = load(acc, f.gamma, 0), load(acc, f.gamma, last)
    b0, b1 = load(acc, f.beta, 0), load(acc, f.beta, last)
    for r in range(rows):
        m = splat(load_scalar(acc, vector_at(acc, memory, MEANS), r))
        s = splat(load_scalar(acc, vector_at(acc, memory, RSTDS), r))
        at, to = x + r * x_stride, y + r * y_stride
        y0, y1 = fma((load(storage, at, 0) - m) * s, g0, b0), fma((load(storage, at, last) - m) * s, g1, b1)
        store(storage, to, 0, y0)
        store(storage, to, last, y1)


@plain
def tiny_rows(storage, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """Up to eight rows shorter than a vector: lane l takes row l, and each lane adds its columns left to right."""
    N, memory = f.N, stack_vectors(acc, LANES)
    x_step, y_step = x_stride // size_of(storage), y_stride // size_of(storage)
    centres, deviations, squares = zeros(acc), zeros(acc), zeros(acc)
    for j in range(N):
        column = gather(storage, x, j, x_step, rows)
        store(acc, vector_at(acc, memory, j), 0, column)
        centres = centres + column
    centres = centres / splat(scalar(acc, N))
    for j in range(N):
        d = load(acc, vector_at(acc, memory, j), 0) - centres
        deviations, squares = deviations + d, fma(d, d, squares)
    means, rstds = close_rows(acc, N, f.eps, centres, deviations, squares, mean, rstd, rows)
    for j in range(N):
        xhat = (load(acc, vector_at(acc, memory, j), 0) - means) * rstds
        g, b = splat(load_scalar(acc, f.gamma, j)), splat(load_scalar(acc, f.beta, j))
        scatter_rows(storage, y, j, y_step, rows, fma(xhat, g, b))


@plain
def forward_rows(storage, acc, arguments, task, thread):
    """One task: rows_per_task rows; tensors that are not used where they lie pass through this thread's scratch."""
    f = read(Forward, arguments)
    size = size_of(storage)
    packed = f.block_rows * f.N * size
    scratch = f.scratch + thread * 2 * packed
    stop = min(f.M, (task + 1) * f.rows_per_task)
    step = f.block_rows if (f.x_table | f.y_table) != 0 else f.rows_per_task
    for start in range(task * f.rows_per_task, stop, step):
        rows = min(step, stop - start)
        x, x_stride = f.x + start * f.x_stride, f.x_stride
        y, y_stride = f.y + start * f.y_stride, f.y_stride
        if f.x_table != 0:
            x, x_stride = scratch, f.N * size
            copy_rows(f.gather, f.x, f.x_table, start, rows, f.N, x)
        if f.y_table != 0:
            y, y_stride = scratch + packed, f.N * size
        mean, rstd = f.mean + start * size_of(acc), f.rstd + start * size_of(acc)
        for i in range(0, rows, f.rows_at_once):
            count, at = min(f.rows_at_once, rows - i), i * size_of(acc)
            x_i, y_i = x + i * x_stride, y + i * y_stride
            if f.N < LANES:
                tiny_rows(storage, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
            elif f.N < 2 * LANES:
                thin_rows(storage, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
            else:
                some_rows(storage, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
        if f.y_table != 0:
            copy_rows(f.scatter, f.y, f.y_table, start, rows, f.N, y)
