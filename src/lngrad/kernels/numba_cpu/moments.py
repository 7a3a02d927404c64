"""The sums, means and variances of up to eight rows together.

Each row has its partial sums in eight lanes, eight such vectors are added up at once, and from there on lane r is row r. So
one division and one root serve eight rows, and nobody waits for them row by row. Source: docs/math.md, equations 1 to 3.
"""

import math

from lngrad.kernels.numba_cpu.arithmetic import (
    fma,
    in_order,
    inverse_root,
    only,
    scalar,
    splat,
    spread,
    totals,
    vector_of,
    where_below,
    zeros,
    zeros_group,
)
from lngrad.kernels.numba_cpu.functions import inlined, plain
from lngrad.kernels.numba_cpu.jobs import GROUP, LANES, SEGMENT
from lngrad.kernels.numba_cpu.simd import WIDE, load, load_mixed, load_scalar, size_of, store
from lngrad.kernels.numba_cpu.sweeps import fetch_group, segment_columns, segment_count, vector_at

# What lies in the room of some rows: the lanes of their sums, of their squares, and three vectors of a lane a row.
SUMS, SQUARES, CENTRES, MEANS, RSTDS, ROOM = 0, LANES, 2 * LANES, 2 * LANES + 1, 2 * LANES + 2, 2 * LANES + 3


@inlined
def sum_lanes(tag, acc, x, n):
    """Eight lanes whose total is the sum of n >= 8 columns."""
    a = zeros_group(acc)
    for j in range(0, n - n % GROUP, GROUP):
        a = a + load_mixed(tag, x, j)
    a = in_order(tag, a)
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    j = n - n % GROUP
    while j + LANES <= n:
        a0 = a0 + load(tag, x, j)
        j += LANES
    if j < n:  # the last eight columns, less those that are in already
        a3 = a3 + only(load(tag, x, n - LANES), LANES - (n - j))
    return (a0 + a1) + (a2 + a3)


@inlined
def two_sum_lanes(tag, acc, x0, x1, n):
    """sum_lanes of two rows, side by side: the additions of one row wait for each other."""
    a, b = zeros_group(acc), zeros_group(acc)
    for j in range(0, n - n % GROUP, GROUP):
        a, b = a + load_mixed(tag, x0, j), b + load_mixed(tag, x1, j)
    a, b = in_order(tag, a), in_order(tag, b)
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    b0, b1, b2, b3 = vector_of(b, 0), vector_of(b, 1), vector_of(b, 2), vector_of(b, 3)
    j = n - n % GROUP
    while j + LANES <= n:
        a0, b0 = a0 + load(tag, x0, j), b0 + load(tag, x1, j)
        j += LANES
    if j < n:
        summed, last = LANES - (n - j), n - LANES
        a3, b3 = a3 + only(load(tag, x0, last), summed), b3 + only(load(tag, x1, last), summed)
    return (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)


@inlined
def centred_lanes(tag, acc, x, ahead, n, centre):
    """sum_lanes of x - centre and of its square; centre is lanes.

    ahead: how many bytes on a row lies of which every second group is fetched meanwhile; None for none. The others are fetched
    when y is written, so that the memory is busy in both visits: 16384×1024 bfloat16 27 → 35 GB/s, 1 thread, AMD EPYC 9005.
    """
    a, b, centres = zeros_group(acc), zeros_group(acc), spread(centre)
    for j in range(0, n - n % GROUP, GROUP):
        if ahead is not None and j & GROUP == 0:
            fetch_group(tag, x + ahead, j)
        d = load_mixed(tag, x, j) - centres
        a, b = a + d, fma(d, d, b)
    a, b = in_order(tag, a), in_order(tag, b)
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
    return (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)


@inlined
def two_centred_lanes(tag, acc, x0, x1, ahead, n, centre0, centre1):
    """centred_lanes of two rows, side by side."""
    a, b, c, d = zeros_group(acc), zeros_group(acc), zeros_group(acc), zeros_group(acc)
    centres0, centres1 = spread(centre0), spread(centre1)
    for j in range(0, n - n % GROUP, GROUP):
        if ahead is not None and j & GROUP == 0:
            fetch_group(tag, x0 + ahead, j)
            fetch_group(tag, x1 + ahead, j)
        u, v = load_mixed(tag, x0, j) - centres0, load_mixed(tag, x1, j) - centres1
        a, b, c, d = a + u, fma(u, u, b), c + v, fma(v, v, d)
    a, b, c, d = in_order(tag, a), in_order(tag, b), in_order(tag, c), in_order(tag, d)
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    b0, b1, b2, b3 = vector_of(b, 0), vector_of(b, 1), vector_of(b, 2), vector_of(b, 3)
    c0, c1, c2, c3 = vector_of(c, 0), vector_of(c, 1), vector_of(c, 2), vector_of(c, 3)
    d0, d1, d2, d3 = vector_of(d, 0), vector_of(d, 1), vector_of(d, 2), vector_of(d, 3)
    j = n - n % GROUP
    while j + LANES <= n:
        u, v = load(tag, x0, j) - centre0, load(tag, x1, j) - centre1
        a0, b0, c0, d0 = a0 + u, fma(u, u, b0), c0 + v, fma(v, v, d0)
        j += LANES
    if j < n:
        summed, last = LANES - (n - j), n - LANES
        u, v = only(load(tag, x0, last) - centre0, summed), only(load(tag, x1, last) - centre1, summed)
        a3, b3, c3, d3 = a3 + u, fma(u, u, b3), c3 + v, fma(v, v, d3)
    first = (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)
    return first, ((c0 + c1) + (c2 + c3), (d0 + d1) + (d2 + d3))


@inlined
def clear_absent(acc, memory, rows):
    """Zero where the sums of further rows would lie, where there are fewer than eight."""
    for r in range(rows, LANES):
        store(acc, vector_at(acc, memory, SUMS + r), 0, zeros(acc))
        store(acc, vector_at(acc, memory, SQUARES + r), 0, zeros(acc))


@plain
def centre_rows(tag, acc, memory, x, x_stride, rows, N):
    """Leave a centre close to its mean of each of up to eight rows of N >= 8 columns in the room: lane r is row r."""
    clear_absent(acc, memory, rows)
    centres = zeros(acc)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        for r in range(0, rows - rows % 2, 2):
            a, b = two_sum_lanes(tag, acc, at + r * x_stride, at + (r + 1) * x_stride, n)
            store(acc, vector_at(acc, memory, SUMS + r), 0, a)
            store(acc, vector_at(acc, memory, SUMS + r + 1), 0, b)
        for r in range(rows - rows % 2, rows):
            store(acc, vector_at(acc, memory, SUMS + r), 0, sum_lanes(tag, acc, at + r * x_stride, n))
        centres = centres + totals(acc, vector_at(acc, memory, SUMS))
    store(acc, vector_at(acc, memory, CENTRES), 0, centres / splat(scalar(acc, N)))


@plain
def moments(tag, acc, memory, x, x_stride, ahead, rows, N):
    """The centres that centre_rows has left in the room, and the sums of x - centre and of its square: lane r is row r."""
    deviations, squares = zeros(acc), zeros(acc)
    for segment in range(segment_count(N)):
        at, n = x + segment * SEGMENT * size_of(tag), segment_columns(N, segment)
        paired = 0
        if WIDE:  # two rows take all sixteen registers of a machine without AVX-512
            paired = rows - rows % 2
            for r in range(0, paired, 2):
                centre0 = splat(load_scalar(acc, vector_at(acc, memory, CENTRES), r))
                centre1 = splat(load_scalar(acc, vector_at(acc, memory, CENTRES), r + 1))
                (a0, b0), (a1, b1) = two_centred_lanes(
                    tag, acc, at + r * x_stride, at + (r + 1) * x_stride, ahead, n, centre0, centre1
                )
                store(acc, vector_at(acc, memory, SUMS + r), 0, a0)
                store(acc, vector_at(acc, memory, SQUARES + r), 0, b0)
                store(acc, vector_at(acc, memory, SUMS + r + 1), 0, a1)
                store(acc, vector_at(acc, memory, SQUARES + r + 1), 0, b1)
        for r in range(paired, rows):
            centre = splat(load_scalar(acc, vector_at(acc, memory, CENTRES), r))
            a, b = centred_lanes(tag, acc, at + r * x_stride, ahead, n, centre)
            store(acc, vector_at(acc, memory, SUMS + r), 0, a)
            store(acc, vector_at(acc, memory, SQUARES + r), 0, b)
        deviations = deviations + totals(acc, vector_at(acc, memory, SUMS))
        squares = squares + totals(acc, vector_at(acc, memory, SQUARES))
    return load(acc, vector_at(acc, memory, CENTRES), 0), deviations, squares


@inlined
def statistics(acc, N, centre, deviations, squares, eps):
    """The mean and rstd of eight rows, from the sums around a centre close to the mean."""
    n = splat(scalar(acc, N))
    shift, variance = deviations / n, squares / n
    # Overflow: rstd is 0; where the mean overflows too, or is a NaN, so is rstd.
    overflown = variance + (shift - shift)
    variance = where_below(variance, splat(scalar(acc, math.inf)), variance - shift * shift, overflown)
    variance = where_below(variance, zeros(acc), zeros(acc), variance)  # rounding; a NaN passes
    return centre + shift, inverse_root(variance, eps)
