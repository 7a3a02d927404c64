"""Forward tasks: mean, rstd and y of whole rows.

The mean is taken twice: the first one centres the row, and the mean of what is left corrects it. So a large offset costs
no accuracy, and the variance is never a difference of two large numbers. Source: docs/math.md, equations 1 to 4.
"""

from lngrad.kernels.numba_cpu.arithmetic import fma, from_bits, only, scalar, splat, spread, totals, zeros
from lngrad.kernels.numba_cpu.functions import inlined, plain
from lngrad.kernels.numba_cpu.jobs import GROUP, LANES, Forward
from lngrad.kernels.numba_cpu.moments import (
    CENTRES,
    MEANS,
    ROOM,
    RSTDS,
    SQUARES,
    SUMS,
    clear_absent,
    moments,
    statistics,
)
from lngrad.kernels.numba_cpu.pool import read
from lngrad.kernels.numba_cpu.simd import (
    gather,
    load,
    load_group,
    load_scalar,
    prefetch,
    room,
    scatter_rows,
    size_of,
    store,
    stream,
)
from lngrad.kernels.numba_cpu.sweeps import LINE_BYTES, vector_at
from lngrad.kernels.numba_cpu.tiles import copy_rows

ALIGNED = 4 * GROUP  # columns from which on a row's stores begin on cache lines


@plain
def write_row(tag, acc, x, x_next, y, row_mean, row_rstd, gamma, beta, N, streaming):
    """y of one row of N >= 8 columns; x_next is where a row lies that is fetched meanwhile, x itself for none.

    Groups begin on cache lines of y, since a store across two lines costs as much as two: the first group is written where
    the row begins, and the second overlaps it. Not in place, where the overlap would be read after it was written.
    """
    m, r = splat(row_mean), splat(row_rstd)
    means, rstds = spread(m), spread(r)
    # Read before y is written: where y takes x's own memory, the last full vector overwrites some of these.
    peeked = fma((load(tag, x, N - LANES) - m) * r, load(acc, gamma, N - LANES), load(acc, beta, N - LANES))
    j = 0
    if streaming == 0 and N >= ALIGNED and x != y:
        store(tag, y, 0, normalized_group(tag, acc, x, 0, means, rstds, gamma, beta))
        j = (-y & (LINE_BYTES - 1)) // size_of(tag)
    while j + GROUP <= N:
        for k in range(0, GROUP * size_of(tag), LINE_BYTES):
            prefetch(tag, x_next, j + k // size_of(tag))
        result = normalized_group(tag, acc, x, j, means, rstds, gamma, beta)
        if streaming:
            stream(tag, y, j, result)
        else:
            store(tag, y, j, result)
        j += GROUP
    while j + LANES <= N:
        store(tag, y, j, fma((load(tag, x, j) - m) * r, load(acc, gamma, j), load(acc, beta, j)))
        j += LANES
    if j < N:
        store(tag, y, N - LANES, peeked)


@inlined
def normalized_group(tag, acc, x, j, means, rstds, gamma, beta):
    """y of GROUP columns."""
    return fma((load_group(tag, x, j) - means) * rstds, load_group(acc, gamma, j), load_group(acc, beta, j))


@inlined
def close_rows(acc, N, eps, centres, deviations, squares, mean, rstd, rows):
    """statistics of up to eight rows, written to the addresses mean and rstd."""
    means, rstds = statistics(acc, N, centres, deviations, squares, from_bits(eps))
    scatter_rows(acc, mean, 0, 1, rows, means)
    scatter_rows(acc, rstd, 0, 1, rows, rstds)
    return means, rstds


@plain
def some_rows(tag, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """Up to eight rows of N >= 8 columns: their statistics side by side, then y row by row, as one stream."""
    memory = room(acc, ROOM)
    centres, deviations, squares = moments(tag, acc, memory, x, x_stride, rows, f.N)
    means, rstds = close_rows(acc, f.N, f.eps, centres, deviations, squares, mean, rstd, rows)
    store(acc, vector_at(acc, memory, MEANS), 0, means)
    store(acc, vector_at(acc, memory, RSTDS), 0, rstds)
    ahead = f.ahead * rows * x_stride
    for r in range(rows):
        m = load_scalar(acc, vector_at(acc, memory, MEANS), r)
        s = load_scalar(acc, vector_at(acc, memory, RSTDS), r)
        at = x + r * x_stride
        write_row(tag, acc, at, at + ahead, y + r * y_stride, m, s, f.gamma, f.beta, f.N, f.streaming)


@plain
def thin_rows(tag, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """some_rows of 8 to 15 columns: the first eight and the last eight, without a loop over columns. Same sums."""
    N, memory = f.N, room(acc, ROOM)
    last, summed = N - LANES, 2 * LANES - N
    clear_absent(acc, memory, rows)
    for r in range(rows):
        at = x + r * x_stride
        store(acc, vector_at(acc, memory, SUMS + r), 0, load(tag, at, 0) + only(load(tag, at, last), summed))
    centres = (zeros(acc) + totals(acc, vector_at(acc, memory, SUMS))) / splat(scalar(acc, N))
    store(acc, vector_at(acc, memory, CENTRES), 0, centres)
    for r in range(rows):
        at, centre = x + r * x_stride, splat(load_scalar(acc, vector_at(acc, memory, CENTRES), r))
        d0, d1 = load(tag, at, 0) - centre, only(load(tag, at, last) - centre, summed)
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
        y0, y1 = fma((load(tag, at, 0) - m) * s, g0, b0), fma((load(tag, at, last) - m) * s, g1, b1)
        store(tag, to, 0, y0)
        store(tag, to, last, y1)


@plain
def tiny_rows(tag, acc, f, x, x_stride, y, y_stride, mean, rstd, rows):
    """Up to eight rows shorter than a vector: lane l takes row l, and each lane adds its columns left to right."""
    N, memory = f.N, room(acc, LANES)
    x_step, y_step = x_stride // size_of(tag), y_stride // size_of(tag)
    centres, deviations, squares = zeros(acc), zeros(acc), zeros(acc)
    for j in range(N):
        column = gather(tag, x, j, x_step, rows)
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
        scatter_rows(tag, y, j, y_step, rows, fma(xhat, g, b))


@plain
def forward_rows(tag, acc, arguments, task, thread):
    """One task: rows_per_task rows; tensors that are not used where they lie pass through this thread's scratch."""
    f = read(Forward, arguments)
    size = size_of(tag)
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
                tiny_rows(tag, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
            elif f.N < 2 * LANES:
                thin_rows(tag, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
            else:
                some_rows(tag, acc, f, x_i, x_stride, y_i, y_stride, mean + at, rstd + at, count)
        if f.y_table != 0:
            copy_rows(f.scatter, f.y, f.y_table, start, rows, f.N, y)
