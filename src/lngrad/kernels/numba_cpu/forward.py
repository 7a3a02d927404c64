"""Forward tasks: mean, rstd and y of whole rows.

The mean is taken twice: the first one centres the row, and the mean of what is left corrects it. So a large offset costs
no accuracy, and the variance is never a difference of two large numbers. Source: docs/math.md, equations 1 to 4.
"""

import math

from lngrad.kernels.numba_cpu.jobs import GROUP, LANES, SEGMENT, Forward
from lngrad.kernels.numba_cpu.pool import read
from lngrad.kernels.numba_cpu.simd import (
    WIDE,
    fma,
    from_bits,
    gather,
    lane_of,
    load,
    load_group,
    load_scalar,
    only,
    prefetch,
    scalar,
    scatter_rows,
    size_of,
    splat,
    spread,
    store,
    store_scalar,
    stream,
    total,
    vector_of,
    zeros,
    zeros_group,
)
from lngrad.kernels.numba_cpu.sweeps import LINE_BYTES, inlined, plain, segment_columns, segment_count
from lngrad.kernels.numba_cpu.tiles import copy_rows


@plain
def close_sum(tag, acc, x, n, a):
    """The sum of n >= 8 columns, given the sums over whole groups of them, lane by lane."""
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    j = n - n % GROUP
    while j + LANES <= n:
        a0 = a0 + load(tag, x, j)
        j += LANES
    if j < n:  # the last eight columns, less those that are in already
        a3 = a3 + only(load(tag, x, n - LANES), LANES - (n - j))
    return total((a0 + a1) + (a2 + a3))


@plain
def close_centred_sums(tag, acc, x, n, centre, a, b):
    """close_sum of x - centre and of its square; centre is lanes."""
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    b0, b1, b2, b3 = vector_of(b, 0), vector_of(b, 1), vector_of(b, 2), vector_of(b, 3)
    j = n - n % GROUP
    while j + LANES <= n:
        d0 = load(tag, x, j) - centre
        a0, b0 = a0 + d0, fma(d0, d0, b0)
        j += LANES
    if j < n:
        d3 = only(load(tag, x, n - LANES) - centre, LANES - (n - j))
        a3, b3 = a3 + d3, fma(d3, d3, b3)
    return total((a0 + a1) + (a2 + a3)), total((b0 + b1) + (b2 + b3))


@inlined
def row_sum(tag, acc, x, N):
    """Sum of N >= 8 columns."""
    result = scalar(acc, 0)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        a = zeros_group(acc)
        for j in range(0, n - n % GROUP, GROUP):
            a = a + load_group(tag, at, j)
        result += close_sum(tag, acc, at, n, a)
    return result


@inlined
def centred_sums(tag, acc, x, N, centre):
    """Sum of x - centre and of its square over N >= 8 columns; centre is lanes."""
    result, result_squares = scalar(acc, 0), scalar(acc, 0)
    centres = spread(centre)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        a, b = zeros_group(acc), zeros_group(acc)
        for j in range(0, n - n % GROUP, GROUP):
            d = load_group(tag, at, j) - centres
            a, b = a + d, fma(d, d, b)
        deviations, squares = close_centred_sums(tag, acc, at, n, centre, a, b)
        result += deviations
        result_squares += squares
    return result, result_squares


@inlined
def statistics(acc, N, centre, deviations, squares, eps):
    """The mean and rstd, from the sums around a centre close to the mean."""
    shift = deviations / scalar(acc, N)
    variance = squares / scalar(acc, N)
    if variance < math.inf:
        variance -= shift * shift
    else:  # overflow: rstd is 0; where the mean overflows too, or is a NaN, so is rstd
        variance += shift - shift
    if variance < 0:  # rounding; a NaN passes
        variance = scalar(acc, 0)
    return centre + shift, scalar(acc, 1.0 / math.sqrt(variance + eps))


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
    if streaming == 0 and N >= GROUP and x != y:
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


@plain
def forward_row(tag, acc, f, x, x_stride, y, mean, rstd):
    """One row of N >= 8 columns; mean and rstd are addresses."""
    N, eps = f.N, from_bits(f.eps)
    centre = row_sum(tag, acc, x, N) / scalar(acc, N)
    deviations, squares = centred_sums(tag, acc, x, N, splat(centre))
    row_mean, row_rstd = statistics(acc, N, centre, deviations, squares, eps)
    store_scalar(acc, mean, 0, row_mean)
    store_scalar(acc, rstd, 0, row_rstd)
    write_row(tag, acc, x, x + f.ahead * x_stride, y, row_mean, row_rstd, f.gamma, f.beta, N, f.streaming)


@inlined
def four_sums(tag, acc, x0, x1, x2, x3, n):
    """row_sum of four rows of one segment, side by side: a row's additions wait for each other, and rows do not."""
    a0, a1, a2, a3 = zeros_group(acc), zeros_group(acc), zeros_group(acc), zeros_group(acc)
    for j in range(0, n - n % GROUP, GROUP):
        a0, a1 = a0 + load_group(tag, x0, j), a1 + load_group(tag, x1, j)
        a2, a3 = a2 + load_group(tag, x2, j), a3 + load_group(tag, x3, j)
    return (
        close_sum(tag, acc, x0, n, a0), close_sum(tag, acc, x1, n, a1),
        close_sum(tag, acc, x2, n, a2), close_sum(tag, acc, x3, n, a3),
    )  # fmt: skip


@inlined
def two_centred_sums(tag, acc, x0, x1, n, centre0, centre1):
    """centred_sums of two rows of one segment, side by side."""
    a0, b0, a1, b1 = zeros_group(acc), zeros_group(acc), zeros_group(acc), zeros_group(acc)
    m0, m1 = splat(centre0), splat(centre1)
    centres0, centres1 = spread(m0), spread(m1)
    for j in range(0, n - n % GROUP, GROUP):
        d0, d1 = load_group(tag, x0, j) - centres0, load_group(tag, x1, j) - centres1
        a0, b0, a1, b1 = a0 + d0, fma(d0, d0, b0), a1 + d1, fma(d1, d1, b1)
    return close_centred_sums(tag, acc, x0, n, m0, a0, b0), close_centred_sums(tag, acc, x1, n, m1, a1, b1)


@plain
def four_rows(tag, acc, f, x, x_stride, y, y_stride, mean, rstd):
    """Four rows of one segment: their statistics side by side, then y row by row, as one stream."""
    N, gamma, beta, eps, streaming = f.N, f.gamma, f.beta, from_bits(f.eps), f.streaming
    x1, x2, x3 = x + x_stride, x + 2 * x_stride, x + 3 * x_stride
    c0, c1, c2, c3 = four_sums(tag, acc, x, x1, x2, x3, N)
    n = scalar(acc, N)
    c0, c1, c2, c3 = c0 / n, c1 / n, c2 / n, c3 / n
    if WIDE:
        (d0, s0), (d1, s1) = two_centred_sums(tag, acc, x, x1, N, c0, c1)
        (d2, s2), (d3, s3) = two_centred_sums(tag, acc, x2, x3, N, c2, c3)
    else:  # two rows take all sixteen registers
        d0, s0 = centred_sums(tag, acc, x, N, splat(c0))
        d1, s1 = centred_sums(tag, acc, x1, N, splat(c1))
        d2, s2 = centred_sums(tag, acc, x2, N, splat(c2))
        d3, s3 = centred_sums(tag, acc, x3, N, splat(c3))
    m0, r0 = statistics(acc, N, c0, d0, s0, eps)
    m1, r1 = statistics(acc, N, c1, d1, s1, eps)
    m2, r2 = statistics(acc, N, c2, d2, s2, eps)
    m3, r3 = statistics(acc, N, c3, d3, s3, eps)
    ahead = 4 * f.ahead * x_stride
    write_row(tag, acc, x, x + ahead, y, m0, r0, gamma, beta, N, streaming)
    write_row(tag, acc, x1, x1 + ahead, y + y_stride, m1, r1, gamma, beta, N, streaming)
    write_row(tag, acc, x2, x2 + ahead, y + 2 * y_stride, m2, r2, gamma, beta, N, streaming)
    write_row(tag, acc, x3, x3 + ahead, y + 3 * y_stride, m3, r3, gamma, beta, N, streaming)
    store_scalar(acc, mean, 0, m0)
    store_scalar(acc, mean, 1, m1)
    store_scalar(acc, mean, 2, m2)
    store_scalar(acc, mean, 3, m3)
    store_scalar(acc, rstd, 0, r0)
    store_scalar(acc, rstd, 1, r1)
    store_scalar(acc, rstd, 2, r2)
    store_scalar(acc, rstd, 3, r3)


@plain
def tiny_forward(tag, acc, x, y, mean, rstd, gamma, beta, N, rows, x_stride, y_stride, eps):
    """Rows shorter than a vector: lane l takes row i + l, and each lane adds its columns left to right."""
    x_step, y_step = x_stride // size_of(tag), y_stride // size_of(tag)
    for i in range(0, rows, LANES):
        count = min(LANES, rows - i)
        x_i, y_i = x + i * x_stride, y + i * y_stride
        centre, deviations, squares = zeros(acc), zeros(acc), zeros(acc)
        for j in range(N):
            centre = centre + gather(tag, x_i, j, x_step, count)
        centre = centre / splat(scalar(acc, N))
        for j in range(N):
            d = gather(tag, x_i, j, x_step, count) - centre
            deviations, squares = deviations + d, fma(d, d, squares)
        for lane in range(count):
            m, r = statistics(acc, N, lane_of(centre, lane), lane_of(deviations, lane), lane_of(squares, lane), eps)
            store_scalar(acc, mean, i + lane, m)
            store_scalar(acc, rstd, i + lane, r)
        m, r = gather(acc, mean, i, 1, count), gather(acc, rstd, i, 1, count)
        for j in range(N):
            xhat = (gather(tag, x_i, j, x_step, count) - m) * r
            g, b = splat(load_scalar(acc, gamma, j)), splat(load_scalar(acc, beta, j))
            scatter_rows(tag, y_i, j, y_step, count, fma(xhat, g, b))


@plain
def forward_rows(tag, acc, arguments, task, thread):
    """One task: rows_per_task rows; tensors that are not used where they lie pass through this thread's scratch."""
    f = read(Forward, arguments)
    eps = from_bits(f.eps)
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
        if f.N < LANES:
            tiny_forward(tag, acc, x, y, mean, rstd, f.gamma, f.beta, f.N, rows, x_stride, y_stride, eps)
        else:
            whole = rows - rows % 4 if f.N < 2 * SEGMENT else 0
            for i in range(0, whole, 4):
                at = i * size_of(acc)
                four_rows(tag, acc, f, x + i * x_stride, x_stride, y + i * y_stride, y_stride, mean + at, rstd + at)
            for i in range(whole, rows):
                at = i * size_of(acc)
                forward_row(tag, acc, f, x + i * x_stride, x_stride, y + i * y_stride, mean + at, rstd + at)
        if f.y_table != 0:
            copy_rows(f.scatter, f.y, f.y_table, start, rows, f.N, y)
