"""Forward tasks: mean, rstd and y of whole rows.

The mean is taken twice: the first one centres the row, and the mean of what is left corrects it. So a large offset costs
no accuracy, and the variance is never a difference of two large numbers. Source: docs/math.md, equations 1 to 4.
"""

import math

from lngrad.kernels.numba_cpu.jobs import LANES, SEGMENT, SHORT, Forward
from lngrad.kernels.numba_cpu.pool import read
from lngrad.kernels.numba_cpu.simd import (
    fma,
    from_bits,
    gather,
    lane_of,
    load,
    load_scalar,
    only,
    prefetch,
    scalar,
    scatter_rows,
    size_of,
    splat,
    store,
    store_scalar,
    stream,
    total,
    zeros,
)
from lngrad.kernels.numba_cpu.strided import pack, unpack
from lngrad.kernels.numba_cpu.sweeps import LINE_BYTES, inlined, plain, segment_columns, segment_count


@inlined
def row_sum(tag, acc, x, N):
    """Sum of N >= 8 columns."""
    result = scalar(acc, 0)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        a0, a1, a2, a3 = zeros(acc), zeros(acc), zeros(acc), zeros(acc)
        j = 0
        while j + 4 * LANES <= n:
            a0, a1 = a0 + load(tag, at, j), a1 + load(tag, at, j + LANES)
            a2, a3 = a2 + load(tag, at, j + 2 * LANES), a3 + load(tag, at, j + 3 * LANES)
            j += 4 * LANES
        while j + LANES <= n:
            a0 = a0 + load(tag, at, j)
            j += LANES
        if j < n:
            a3 = a3 + only(load(tag, at, n - LANES), LANES - (n - j))
        result += total((a0 + a1) + (a2 + a3))
    return result


@inlined
def centred_sums(tag, acc, x, N, centre):
    """Sum of x - centre and of its square over N >= 8 columns; centre is lanes."""
    result, result_squares = scalar(acc, 0), scalar(acc, 0)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        a0, a1, b0, b1 = zeros(acc), zeros(acc), zeros(acc), zeros(acc)
        a2, a3, b2, b3 = zeros(acc), zeros(acc), zeros(acc), zeros(acc)
        j = 0
        while j + 4 * LANES <= n:
            d0, d1 = load(tag, at, j) - centre, load(tag, at, j + LANES) - centre
            d2, d3 = load(tag, at, j + 2 * LANES) - centre, load(tag, at, j + 3 * LANES) - centre
            a0, a1, a2, a3 = a0 + d0, a1 + d1, a2 + d2, a3 + d3
            b0, b1, b2, b3 = fma(d0, d0, b0), fma(d1, d1, b1), fma(d2, d2, b2), fma(d3, d3, b3)
            j += 4 * LANES
        while j + LANES <= n:
            d0 = load(tag, at, j) - centre
            a0, b0 = a0 + d0, fma(d0, d0, b0)
            j += LANES
        if j < n:
            d3 = only(load(tag, at, n - LANES) - centre, LANES - (n - j))
            a3, b3 = a3 + d3, fma(d3, d3, b3)
        result += total((a0 + a1) + (a2 + a3))
        result_squares += total((b0 + b1) + (b2 + b3))
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


@inlined
def write_row(tag, acc, x, x_next, y, row_mean, row_rstd, gamma, beta, N, streaming):
    """y of one row of N >= 8 columns; x_next is where a row lies that is to be fetched meanwhile, or None."""
    m, r = splat(row_mean), splat(row_rstd)
    tail = N % LANES
    # Read before y is written: where y takes x's own memory, the last full vector overwrites some of these.
    peeked = fma((load(tag, x, N - LANES) - m) * r, load(acc, gamma, N - LANES), load(acc, beta, N - LANES))
    for j in range(0, N - tail, LANES):
        if x_next is not None and j % (LINE_BYTES // size_of(tag)) == 0:
            prefetch(tag, x_next, j)
        result = fma((load(tag, x, j) - m) * r, load(acc, gamma, j), load(acc, beta, j))
        if streaming:
            stream(tag, y, j, result)
        else:
            store(tag, y, j, result)
    if tail > 0:
        store(tag, y, N - LANES, peeked)


@plain
def forward_row(tag, acc, x, x_next, y, mean, rstd, gamma, beta, N, eps, streaming):
    """One row of N >= 8 columns; mean and rstd are addresses, x_next is where the next row lies: see sweeps.sweep."""
    centre = row_sum(tag, acc, x, N) / scalar(acc, N)
    deviations, squares = centred_sums(tag, acc, x, N, splat(centre))
    row_mean, row_rstd = statistics(acc, N, centre, deviations, squares, eps)
    store_scalar(acc, mean, 0, row_mean)
    store_scalar(acc, rstd, 0, row_rstd)
    write_row(tag, acc, x, x_next, y, row_mean, row_rstd, gamma, beta, N, streaming)


@plain
def four_short_rows(tag, acc, x, x_stride, y, y_stride, mean, rstd, gamma, beta, N, eps, streaming):
    """Four rows of 8 <= N <= SHORT columns, step by step: each waits for its own sums, and the others fill the time."""
    x1, x2, x3 = x + x_stride, x + 2 * x_stride, x + 3 * x_stride
    c0, c1 = row_sum(tag, acc, x, N) / scalar(acc, N), row_sum(tag, acc, x1, N) / scalar(acc, N)
    c2, c3 = row_sum(tag, acc, x2, N) / scalar(acc, N), row_sum(tag, acc, x3, N) / scalar(acc, N)
    d0, s0 = centred_sums(tag, acc, x, N, splat(c0))
    d1, s1 = centred_sums(tag, acc, x1, N, splat(c1))
    d2, s2 = centred_sums(tag, acc, x2, N, splat(c2))
    d3, s3 = centred_sums(tag, acc, x3, N, splat(c3))
    m0, r0 = statistics(acc, N, c0, d0, s0, eps)
    m1, r1 = statistics(acc, N, c1, d1, s1, eps)
    m2, r2 = statistics(acc, N, c2, d2, s2, eps)
    m3, r3 = statistics(acc, N, c3, d3, s3, eps)
    write_row(tag, acc, x, None, y, m0, r0, gamma, beta, N, streaming)
    write_row(tag, acc, x1, None, y + y_stride, m1, r1, gamma, beta, N, streaming)
    write_row(tag, acc, x2, None, y + 2 * y_stride, m2, r2, gamma, beta, N, streaming)
    write_row(tag, acc, x3, None, y + 3 * y_stride, m3, r3, gamma, beta, N, streaming)
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
    """One task: rows_per_task rows; tensors without a plain row stride pass through this thread's scratch."""
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
            pack(tag, f.x, f.x_table, f.M, start, rows, f.N, x)
        if f.y_table != 0:
            y, y_stride = scratch + packed, f.N * size
        mean, rstd = f.mean + start * size_of(acc), f.rstd + start * size_of(acc)
        if f.N < LANES:
            tiny_forward(tag, acc, x, y, mean, rstd, f.gamma, f.beta, f.N, rows, x_stride, y_stride, eps)
        else:
            whole = rows - rows % 4 if f.N <= SHORT else 0
            for i in range(0, whole, 4):
                at = i * size_of(acc)
                four_short_rows(
                    tag, acc, x + i * x_stride, x_stride, y + i * y_stride, y_stride, mean + at, rstd + at,
                    f.gamma, f.beta, f.N, eps, f.streaming,
                )  # fmt: skip
            for i in range(whole, rows):
                at = i * size_of(acc)
                forward_row(
                    tag, acc, x + i * x_stride, x + (i + 1) * x_stride, y + i * y_stride, mean + at, rstd + at,
                    f.gamma, f.beta, f.N, eps, f.streaming,
                )  # fmt: skip
        if f.y_table != 0:
            unpack(tag, y, f.y, f.y_table, f.M, start, rows, f.N)
